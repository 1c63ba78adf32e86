"""Tests on the wire that a client in a network namespace of its own sends nothing past the tunnels."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.worlds.commands import ROOT
from tests.worlds.swarms import OPENTRACKER
from tunnel_pool.packet_engine import is_built

# A new device says hello to its neighbours by ARP and IPv6's discovery.
HARMLESS = {"ethertype 0806", "neighbours"}


# Root needs no map of users; others become root of a namespace, where the kernel lets them.
UNSHARE = ["unshare", "-nm"] if os.geteuid() == 0 else ["unshare", "-rnm"]


def can_unshare():
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_unshare(), reason="no network namespaces for this user, or no iproute2"),
]


async def told_by(module, *arguments, timeout_s=95):
    """Run the module in namespaces of its own, and return its report."""
    process = await asyncio.create_subprocess_exec(
        *UNSHARE, sys.executable, "-m", module, *map(str, arguments),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    ("source", "how"), [("http", ""), ("udp", ""), ("dht", ""), ("http", "daemon"), ("dht", "daemon")]
)
async def test_peers_of_one_source_and_no_packet_past_the_tunnels(source, how, tmp_path):
    if source == "udp" and OPENTRACKER is None:
        pytest.skip("apt-get install opentracker")
    result = await told_by("tests.worlds.leak_world", source, tmp_path, how)
    assert result["code"] == 0, result
    assert result["verified"]
    assert result["to_nodes"] > 100  # trains of datagrams, seen before they are cut
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0


async def test_what_the_owner_is_told_of_a_download_goes_nowhere_else_and_a_block_list_keeps_no_hops_back(tmp_path):
    """The list blocks everybody: it is for torrents without hops."""
    ran, script, blocklist = tmp_path / "ran", tmp_path / "script", tmp_path / "list"
    script.write_text(f'#!/bin/sh\necho "$TR_TORRENT_NAME" > {ran}\n')
    script.chmod(0o755)
    blocklist.write_text("everybody:0.0.0.0-255.255.255.255\n")
    told = f"--script-done={script}", "--webhook-done=http://localhost:9/done", f"--blocklist={blocklist}"
    result = await told_by("tests.worlds.leak_world", "http", tmp_path, "daemon", *told)
    assert result["code"] == 0, result
    assert result["verified"]
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0
    assert ran.exists()


async def test_a_hostile_feed_is_read_through_the_tunnels_and_what_it_names_is_not_reached_past_them(tmp_path):
    """It names places by HTTP, by other ports and protocols, in private networks, and by redirecting there."""
    result = await told_by("tests.worlds.leak_world", "feed", tmp_path, "daemon")
    assert result["code"] == 0, result
    assert result["verified"]
    assert [path for path, _ in result["asked"]] == ["/rss", "/moved", "/get"]
    assert {remote for _, remote in result["asked"]} <= set(result["exits"]), "the exits ask, and not the client"
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0


@pytest.mark.parametrize("lockdown", ["off", "on"])
@pytest.mark.parametrize("how", ["", "daemon", "restart"])
async def test_what_a_hostile_torrent_and_tracker_name_is_not_reached_past_the_tunnels(how, lockdown, tmp_path):
    """They name WebTorrent trackers, web seeds and DHT nodes, by IPv6, too, and the tracker names peers by host.

    With `restart`, the daemon is killed at several moments. Without lockdown, libtorrent's settings alone must hold.
    """
    result = await told_by("tests.worlds.leak_world", "hostile", tmp_path, how, f"--lockdown={lockdown}")
    assert result["code"] == 0, result
    assert result["verified"]
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0


async def test_once_it_is_said_that_a_plain_torrent_has_hops_nothing_is_sent_in_the_old_way(tmp_path):
    result = await told_by("tests.worlds.leak_world", "plain-dht", tmp_path, "change")
    assert result["code"] == 0, result
    assert "address" in result["while_childless"].pop("notice")
    # Where the closed session was, the kernel tells DHT nodes that nobody is there (ICMP, protocol 1), and exits,
    # which still find the port in the DHT, by a reset of TCP.
    told = ("1 ", "reset ")
    assert all(where in HARMLESS or where.startswith(told) for where in result["while_childless"])
    assert any(where.startswith("udp 44.7.5.") for where in result["elsewhere"]), "while it was plain it was in the DHT"
    assert result["unseen"] == 0


async def test_with_every_child_dead_nothing_leaves_and_then_it_goes_on(tmp_path):
    result = await told_by("tests.worlds.leak_world", "http", tmp_path, "kill")
    assert result["code"] == 0, result
    assert result["verified"]
    assert result["restarts"] >= 2
    if is_built():
        assert result["streams"] > 0
    # The kernel tells first hops that their datagrams find nobody (ICMP, protocol 1).
    assert all(where in HARMLESS or where.startswith("1 ") for where in result["while_childless"])
    assert set(result["elsewhere"]) <= HARMLESS
    assert result["unseen"] == 0


async def test_a_node_whose_device_is_taken_away_sends_nothing_elsewhere_and_goes_on_when_it_is_back(tmp_path):
    result = await told_by("tests.worlds.device_world", tmp_path)
    assert (result["while_gone"], result["in_all"]) == (0, 0)


async def test_a_daemon_on_a_device_sends_nothing_by_another(tmp_path):
    """Neither while its torrents are downloaded, nor while the device is gone, nor for one without hops of before."""
    result = await told_by("tests.worlds.device_world", tmp_path, "daemon", timeout_s=240)
    assert result["kept"]["ok"]
    assert not result["refused"]["ok"]
    assert "give it hops" in json.dumps(result["refused"])
    assert all(each["ok"] for each in result["added"])
    assert (result["while_gone"], result["in_all"], result["code"]) == (0, 0, 0)


async def test_without_the_device_named_it_would(tmp_path):
    result = await told_by("tests.worlds.device_world", tmp_path, "unbound")
    assert result["while_gone"] > 0
