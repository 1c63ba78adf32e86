"""Tests the real Tribler's core on our pool; the stand-in in tests/whole/test_tribler.py may behave differently."""

import json
import os
import subprocess
import sys

import pytest

from tests.whole.test_leaks import can_unshare, told_by
from tests.worlds import real_tribler
from tests.worlds.commands import ROOT

SCENARIOS = "tests.worlds.tribler_scenarios"
# As many as Tribler has introduction points for: it joins no hidden swarm beyond them (its max_intro_points).
HIDDEN = 10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_unshare(), reason="no network namespaces for this user, or no iproute2"),
]


@pytest.fixture(scope="module", autouse=True)
def there():
    """Skip if Tribler or a Python for it is missing, and say which; its requirements are installed once."""
    try:
        real_tribler.source()
        real_tribler.python()
    except real_tribler.MissingError as error:
        pytest.skip(str(error))


async def seen(scenario, folder, *arguments):
    return await told_by(SCENARIOS, scenario, folder, *map(json.dumps, arguments), timeout_s=800)


def not_the_same(downloads):
    return [one for one in downloads if not one["same"]]


@pytest.mark.parametrize(("hops", "count"), [(1, 20), (2, 5), (3, 5)])
async def test_one_download_after_another(hops, count, tmp_path):
    """Two libtorrent sessions of Tribler share a SOCKS5 server, so that the second download is another case."""
    told = await seen("one_after_another", tmp_path, hops, count)
    assert not_the_same(told["downloads"]) == []
    assert set(told["carried"]) == {"0", "1"}
    assert min(told["carried"].values()) > 0


async def test_several_downloads_at_once_and_one_that_gets_another_hop_count(tmp_path):
    told = await seen("together", tmp_path, 1, 6)
    assert not_the_same(told["downloads"]) == []
    assert told["changed"] == {"hops": 2, "same": True}


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
async def test_a_child_that_is_struck_does_not_hold_downloads_up(signal, tmp_path):
    """Two children carry six downloads, each from a seeder of its own."""
    told = await seen("disturbed", tmp_path, 1, 6, signal)
    print(f"the longest time that each of six downloads stood after {signal}: {told['stood_s']} s")
    assert told["children"] == 2
    # Those of the other child go on; libtorrent would ask for lost peers again after a minute.
    assert told["stood_s"][2] < 5
    assert max(told["stood_s"]) < 20


async def test_hidden_downloads_from_our_seeders(tmp_path):
    told = await seen("hidden_downloads", tmp_path, 1, HIDDEN)
    print(f"seconds of each hidden download: {[one['seconds'] for one in told['downloads']]}")
    assert not_the_same(told["downloads"]) == []
    assert "RP_DOWNLOADER" in told["types"]


async def test_hidden_seeds_that_our_downloads_find(tmp_path):
    told = await seen("hidden_seeds", tmp_path, 1, HIDDEN)
    print(f"seconds of each hidden download: {[one['seconds'] for one in told['downloads']]}")
    assert not_the_same(told["downloads"]) == []


async def test_a_restart_by_rest(tmp_path):
    assert await seen("restarted", tmp_path, 1) == {"progress": 1, "same": True}


def shape(value):
    """Return the types of a JSON value's members under their keys, and for a list the merged type of its items."""
    if isinstance(value, dict):
        keys = set(value)
        # Keys that are ids, not names, are no part of the shape.
        if keys and not any(key.replace("_", "a").isidentifier() and key.islower() and len(key) < 24 for key in keys):
            return {"*": merged(map(shape, value.values()))}
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [merged(map(shape, value))] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def merged(shapes):
    """Return the shape of several values, of which one may have names that the other lacks."""
    first, *others = shapes
    for other in others:
        if isinstance(first, dict) and isinstance(other, dict):
            first = {key: first.get(key, other.get(key)) for key in {*first, *other}}
    return first


async def test_rest_answers_of_tunnels_are_of_plain_triblers_shape(tmp_path):
    told = {}
    for plain in (True, False):
        folder = tmp_path / str(plain)
        folder.mkdir()
        told[plain] = await seen("rest", folder, plain)
    plain, ours = told[True], told[False]
    assert ours.keys() == plain.keys()
    for path in ("ipv8/network", "ipv8/dht/statistics", "ipv8/dht/buckets", "ipv8/overlays", "ipv8/tunnel/circuits"):
        assert shape(ours[path]) == shape(plain[path]), path
    for path, answer in plain.items():
        assert (
            {key: type(one).__name__ for key, one in ours[path].items()}
            == {key: type(one).__name__ for key, one in answer.items()}
            if isinstance(answer, dict)
            else type(ours[path]) is type(answer)
        ), path
    for told_bytes in (plain, ours):
        assert min(told_bytes["statistics/ipv8"]["ipv8_statistics"].values()) > 10_000
    # Its other overlays meet the nodes of the tunnels.
    assert len(ours["ipv8/network"]["peers"]) == len(plain["ipv8/network"]["peers"]) == 6
    assert {bucket["endpoint"] for bucket in ours["ipv8/dht/buckets"]["buckets"]} == {"UDPIPv4"}
    assert sum(len(bucket["peers"]) for bucket in ours["ipv8/dht/buckets"]["buckets"]) >= 6
    assert ours["ipv8/tunnel/settings"] == plain["ipv8/tunnel/settings"]


async def test_tribler_with_our_patch(tmp_path):
    """The patch is for its maintainers. Twisted is not installed there."""
    told = await seen("patched", tmp_path, 1, 3)
    assert not_the_same(told["downloads"]) == []
    assert told["children"] == 2
    assert told["statistics"]["total_down"] > 3 * (8 << 20)


BY_NATURE = {
    # The exit answers on py-ipv8's pretended network, where our children have no socket.
    "test_community.TestTriblerTunnelCommunity.test_backup_exitnodes",
}


def test_its_own_tests_of_its_tunnels_pass_with_our_class():
    source = real_tribler.source()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source / "src"), str(ROOT)])}
    program = [real_tribler.python(), "-m", "tests.worlds.tribler_suite"]
    ended = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    print(ended.stderr, file=sys.stderr)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["ran"] == 22
    assert told["failed"].keys() == BY_NATURE
