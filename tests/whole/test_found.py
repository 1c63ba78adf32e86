"""Tests that plain clients without an open port find a seed with hops, and that nobody learns who seeds it."""

import itertools
import shutil

import libtorrent as lt
import pytest

from tests.whole.test_leaks import HARMLESS, told_by
from tests.whole.test_leaks import pytestmark as in_namespaces
from tests.worlds.leak_world import CLIENT, NET
from tunnel_pool.private_swarm.swarm import EXIT_NET

pytestmark = in_namespaces

WITHIN_S = 90


async def seen_by(what, hops, source, exits, tmp_path):
    """Run found_world.py, check that nothing told who seeds, and return its report."""
    result = await told_by("tests.worlds.found_world", tmp_path, hops, source, exits, what, timeout_s=150)
    assert result["code"] == 0, result
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0
    assert CLIENT not in result["told"]
    assert all(is_exit(host) for host in result["told"])
    assert result["wrong_connection_ids"] == 0
    return result


def is_exit(host):
    return host.startswith(f"{NET}.{EXIT_NET}.")


@pytest.mark.parametrize(
    ("hops", "source", "exits"),
    [
        (1, "udp", "ours"),
        (2, "http", "ours"),
        (3, "dht", "ours"),
        (1, "dht", "plain"),
        (3, "udp", "plain"),
        (2, "udp", "rust"),
    ],
)
async def test_a_plain_client_finds_what_is_seeded_with_hops(hops, source, exits, tmp_path):
    """It knows one source of peers alone; exits of pyipv8 make no HTTP requests."""
    result = await seen_by("libtorrent", hops, source, exits, tmp_path)
    assert result["verified"]
    assert result["seen"]
    assert all(map(is_exit, result["seen"]))
    assert result["by"] == (["tcp"] if exits == "ours" else ["utp"])
    if source != "dht":
        events, places = [event for event, *_ in result["announces"]], {tuple(at) for _, *at in result["announces"]}
        assert (events, len(places)) == (["started", "stopped"], 1), result["announces"]
        assert exits != "ours" or min(port for _, port in places) > 1
    there, back = result["bytes_per_s"] / 1e6, result["reverse_bytes_per_s"] / 1e6
    print(f"{hops} hops, {source}, {exits}: {there:.0f} MB/s, the other way round {back:.0f} MB/s")


@pytest.mark.parametrize(("hops", "source", "exits"), [(1, "udp", "plain"), (2, "http", "ours")])
async def test_transmission_finds_what_is_seeded_with_hops(hops, source, exits, tmp_path):
    if shutil.which("transmission-daemon") is None:
        pytest.skip("apt-get install transmission-daemon")
    result = await seen_by("transmission", hops, source, exits, tmp_path)
    assert result["verified"]
    assert result["told_of_transmission"]
    print(f"{hops} hops, {source}, {exits}: transmission had it after {result['seconds']} s")


async def test_when_the_exit_is_killed_the_seeder_is_found_again_over_another(tmp_path):
    result = await seen_by("killed", 1, "udp", "ours", tmp_path)
    print(f"found again after {result['again_s']} s")
    assert max(result["again_s"]) < WITHIN_S  # libtorrent tells a UDP tracker once a minute at most
    for seen in result["seen"]:
        assert all(map(is_exit, seen))
        assert len(seen) > len(result["used"])
    assert len(result["told"]) == 2


async def test_a_tracker_is_told_no_more_often_than_it_allows_and_of_one_place_at_a_time(tmp_path):
    result = await seen_by("churn", 1, "http", "ours", tmp_path)
    assert all("curl" in agent for agent in result["agents"]), "all who are anonymous look alike"
    first, second = runs_of(result["announces"])
    for at_s, event, host, port in result["announces"]:
        print(f"{at_s - result['announces'][0][0]:5.1f} s {event or '-':8} {host}:{port}")
        assert port > 1
    assert len(first) > 3, "it was told of other places"
    for run in (first, second):
        events = [event for _, event, *_ in run]
        assert (events[0], events[-1], events.count("started")) == ("started", "stopped", 1)
        assert run[-1][2:] == run[-2][2:], "stopped where it was found"
        told_s = [at_s for at_s, *_ in run[:-1]]
        assert all(then_s - before_s > 11 for before_s, then_s in itertools.pairwise(told_s)), told_s


def runs_of(announces):
    """Return the announces of the daemon's two runs, each of which ends by `stopped`."""
    ends = [number for number, (_, event, *_) in enumerate(announces) if event == "stopped"]
    assert len(ends) == 2, announces
    return announces[: ends[0] + 1], announces[ends[0] + 1 :]


@pytest.mark.parametrize("source", ["udp", "http"])
async def test_a_private_torrents_account_lasts_over_changes_of_hops_and_kill_9(source, tmp_path):
    result = await seen_by("account", 1, source, "ours", tmp_path)
    assert len(result["keys"]) == 1
    assert source == "udp" or f"libtorrent/{lt.__version__}" in result["agents"], "private trackers want to know"
    for name, step in result["steps"].items():
        assert step["told"] == step["counted"], name
        print(f"{name}: {step['counted']} bytes up and down, told from {step['host']}")
    up = [step["counted"][0] for step in result["steps"].values()]
    assert up == sorted(up)
    assert up[1] == up[2] == up[3]
    assert up[4] == up[5]
