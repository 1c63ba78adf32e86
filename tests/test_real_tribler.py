"""The real Tribler's core on our pool; what plays its part in tests/test_tribler.py can't show what it does."""

import json
import subprocess
import sys

import pytest

from tests import real_tribler
from tests.commands import ROOT
from tests.test_leaks import UNSHARE, can_unshare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_unshare(), reason="no network namespaces for this user, or no iproute2"),
]


@pytest.fixture(scope="module", autouse=True)
def there():
    """Skips where Tribler or a Python for it is missing, and says which; what it needs is installed once."""
    try:
        real_tribler.source()
        real_tribler.python()
    except real_tribler.MissingError as error:
        pytest.skip(str(error))


def world(*arguments):
    """Return what tests/tribler_world.py says that it saw, run in a namespace of its own."""
    program = [*UNSHARE, sys.executable, "-m", "tests.tribler_world", *map(str, arguments)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(("hops", "count"), [(1, 20), (2, 5), (3, 5)])
def test_one_download_after_another(hops, count, tmp_path):
    """Two libtorrent sessions of Tribler share a SOCKS5 server, so that the second download is another case."""
    seen = world(tmp_path, hops, count)
    assert [one for one in seen["downloads"] if not one["same"]] == []
    assert set(seen["carried"]) == {"0", "1"}
    assert min(seen["carried"].values()) > 0


def test_a_killed_child_does_not_hold_downloads_up(tmp_path):
    """Six downloads of a seeder each, which two children carry: none stands for long, and three not at all."""
    seen = world(tmp_path, 1, 6, "kill")
    print(f"the longest time that each of six downloads stood: {seen['stood_s']} s")
    assert seen["children"] == 2
    # libtorrent would ask for lost peers again after a minute.
    assert max(seen["stood_s"]) < 20
    assert seen["stood_s"][2] < 5
