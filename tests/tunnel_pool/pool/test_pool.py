"""Tests the pool with real children."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time

import psutil
import pytest
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY

from tests.worlds.network import EXIT_FLAGS, address_of, make_config, network, tunnels, until, unused_host
from tunnel_pool.overlay.ground.config import HostPort, slot_of
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.private_swarm.swarm import free_port
from tunnel_pool.system.errors import UserError
from tunnel_pool.tunnels import NodeOptions, peer_flags


async def test_circuits_are_spread_and_their_ids_tell_the_child():
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=3, circuits=6) as client:
        await until(lambda: all(client.pool.pictures[slot].candidates for slot in range(3)))
        client.build_tunnels(1)
        await until(lambda: client.tunnels_ready(1) == 1.0)
        assert sorted(slot_of(circuit_id) for circuit_id in client.circuits) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
async def test_a_child_takes_only_its_own_circuits_with_it(how):
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=2, circuits=4) as client:
        await until(lambda: all(client.pool.pictures[slot].candidates for slot in range(2)))
        client.build_tunnels(1)
        await until(lambda: client.tunnels_ready(1) == 1.0)
        before = set(client.circuits)
        removed = []
        client.on_circuit_removed = lambda circuit, reason: removed.append(circuit.circuit_id)
        old_pid = client.pool.pid(0)
        os.kill(old_pid, how)
        hit_s = time.monotonic()
        await until(lambda: client.pool.pid(0) not in (None, old_pid), 25, "a new process")
        await until(lambda: client.tunnels_ready(1) == 1.0)
        assert time.monotonic() - hit_s < 30
        assert {slot_of(circuit_id) for circuit_id in removed} == {0}
        assert {circuit_id for circuit_id in before if slot_of(circuit_id) == 1} <= set(client.circuits)
        assert client.pool.restarts() == 1
        assert not psutil.pid_exists(old_pid)
        # The new child starts with what the others know, and takes its share.
        await until(lambda: client.pool.pictures[0].candidates)
        await client.remove_circuit(next(c for c in client.circuits if slot_of(c) == 1))
        await until(lambda: any(slot_of(c) == 0 for c in client.circuits))


@pytest.mark.slow
async def test_what_cannot_start_says_why_and_stops(caplog):
    command = [sys.executable, "-c", "raise SystemExit('libfoo is missing')"]
    pooled = PooledTunnelCommunity(make_config(), [0], 1, command=command)
    with pytest.raises(UserError, match="libfoo is missing"):
        await asyncio.wait_for(pooled.start(), 60)
    assert pooled.pool.restarts() == 4
    await pooled.unload()


@pytest.mark.slow
async def test_a_program_that_is_not_there():
    pooled = PooledTunnelCommunity(make_config(), [0], 1, command=["/no/such/program"])
    with pytest.raises(UserError):
        await asyncio.wait_for(pooled.start(), 60)
    await pooled.unload()


async def test_a_port_in_use_is_said_at_once():
    host = unused_host()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((host, 0))
        port = taken.getsockname()[1]
        pooled = PooledTunnelCommunity(make_config(host=host, port=port), [0], 1)
        with pytest.raises(UserError, match=rf"cannot listen on UDP {host}:{port}: Address already in use"):
            await asyncio.wait_for(pooled.start(), 20)
        assert pooled.pool.restarts() == 0
        await pooled.unload()


async def test_children_listen_on_consecutive_ports():
    host = unused_host()
    port = free_port(host)
    async with tunnels("ported", workers=2, host=host, port=port) as client:
        await client.pool.all_settled()
        assert [client.pool.listen_address(slot) for slot in range(2)] == [(host, port), (host, port + 1)]


async def test_what_a_child_exits_is_told_and_kept_over_its_death():
    """A pooled exit: its totals go on where the dead child's ended."""
    async with tunnels("pooled", workers=1, flags=EXIT_FLAGS, allow_private=True) as exit_node:
        address = HostPort(*exit_node.pool.listen_address(0))
        async with tunnels("plain", [address], circuits=1) as client:
            client.build_tunnels(1)
            await until(lambda: client.tunnels_ready(1) == 1.0)
            (circuit,) = client.find_circuits(hops=1)
            target = (unused_host(), 9)
            datagram = b"d" + bytes(98) + b"e"
            for _ in range(10):  # UDP may lose one
                client.send_data(circuit.hop.address, circuit.circuit_id, target, ("0.0.0.0", 0), datagram)
                with contextlib.suppress(AssertionError):
                    await until(lambda: exit_node.carried().exited_bytes, 3)
                    break
            carried = exit_node.carried()
            assert carried.exits == 1
            assert carried.exited_bytes in range(100, 1001, 100)
            os.kill(exit_node.pool.pid(0), signal.SIGKILL)
            await until(lambda: exit_node.pool.restarts() == 1)
            assert exit_node.carried().exits == 0
            assert exit_node.carried().exited_bytes == carried.exited_bytes


async def test_a_serving_nodes_children_are_peers_of_their_own_and_never_offer_each_other():
    """Others know a key at one address: circuits through children that share one would break."""
    host = unused_host()
    port = 20000 + os.getpid() % 20000
    keys = {slot: make_config().member_key for slot in range(2)}
    async with network(exits=0, relays=1) as (node,):
        known = [address_of(node), HostPort(host, port), HostPort(host, port + 1)]
        config = make_config(flags=EXIT_FLAGS, bootstrap=known, host=host, port=port)
        pooled = PooledTunnelCommunity(config, range(2), 1, own_keys=keys)
        await pooled.start()
        try:
            await until(lambda: len(node.get_candidates(PEER_FLAG_EXIT_BT)) == 2)
            assert {peer.address for peer in node.candidates} == {(host, port), (host, port + 1)}
            await until(lambda: len(pooled.pool.pictures[0].candidates) and len(pooled.pool.pictures[1].candidates))
            await asyncio.sleep(1)  # the time in which they would have found each other
            assert [peer.mid for peer in pooled.candidates] == [node.my_peer.mid]
        finally:
            await pooled.unload()


@pytest.mark.parametrize(
    ("workers", "serves", "steering", "relays"),
    [
        (0, False, False, True),
        (1, False, False, True),
        (2, False, False, False),
        (2, True, False, True),
        (2, False, True, True),
    ],
)
def test_who_relays(tmp_path, workers, serves, steering, relays):
    options = NodeOptions(WorkerRange(workers, workers), tmp_path, serves=serves, steering=steering)
    assert (PEER_FLAG_RELAY in peer_flags(options)) is relays


@pytest.mark.parametrize("kind", ["pooled", pytest.param("ported", marks=pytest.mark.slow)])
async def test_no_circuit_of_ours_has_our_own_key_as_a_hop(kind):
    """Four children that know each other, and a network that offers them as relays and exits."""
    host = unused_host()
    port = 20000 + os.getpid() % 20000
    async with network(exits=1, relays=2) as nodes:
        known = [*map(address_of, nodes), *(HostPort(host, port + slot) for slot in range(4))]
        async with tunnels(
            kind, known, workers=4, circuits=12, host=host, port=port, flags=EXIT_FLAGS, allow_private=True
        ) as client:
            ours = {client.my_peer.public_key.key_to_bin(), *client._public_keys.values()}

            def offered():
                """Return whether every node has one of our keys as a candidate, as relay and as exit."""
                flags = PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT
                known = [{peer.public_key.key_to_bin() for peer in node.get_candidates(*flags)} for node in nodes]
                return all(ours & keys for keys in known)

            await until(offered, what="the network offering us")
            for hops in (1, 2, 3):
                client.build_tunnels(hops)
            seen = {}

            def all_ready():
                for circuit in client.circuits.values():
                    for hop in [*circuit.hops, *([circuit.unverified_hop] if circuit.unverified_hop else [])]:
                        seen.setdefault(circuit.circuit_id, []).append(hop.public_key_bin)
                return all(client.tunnels_ready(hops) == 1.0 for hops in (1, 2, 3))

            await until(all_ready, 60)
            assert len({slot_of(circuit_id) for circuit_id in seen}) == 4
            assert len(seen) >= 36
            assert not ours & {key for keys in seen.values() for key in keys}
            # None of the nodes was asked to go on to us either.
            assert not ours & {
                relay.hop.public_key_bin
                for node in nodes
                for relay in node.relay_from_to.values()
                if relay.direction == 0
            }
