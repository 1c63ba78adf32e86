"""The real Tribler's core on our pool; what plays its part in tests/test_tribler.py can't show what it does."""

import pytest

from tests import real_tribler
from tests.test_leaks import can_unshare, told_by

WORLD = "tests.tribler_world"

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


@pytest.mark.parametrize(("hops", "count"), [(1, 20), (2, 5), (3, 5)])
async def test_one_download_after_another(hops, count, tmp_path):
    """Two libtorrent sessions of Tribler share a SOCKS5 server, so that the second download is another case."""
    seen = await told_by(WORLD, tmp_path, hops, count, timeout_s=800)
    assert [one for one in seen["downloads"] if not one["same"]] == []
    assert set(seen["carried"]) == {"0", "1"}
    assert min(seen["carried"].values()) > 0


async def test_a_killed_child_does_not_hold_downloads_up(tmp_path):
    """Six downloads of a seeder each, which two children carry: none stands for long, and three not at all."""
    seen = await told_by(WORLD, tmp_path, 1, 6, "kill", timeout_s=800)
    print(f"the longest time that each of six downloads stood: {seen['stood_s']} s")
    assert seen["children"] == 2
    # libtorrent would ask for lost peers again after a minute.
    assert max(seen["stood_s"]) < 20
    assert seen["stood_s"][2] < 5
