"""Tests a pool that grows and shrinks, with real children, and with children forked from a template."""

import asyncio
import os
import signal
import time

import psutil
import pytest
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_EXIT_BT

from tests.worlds.network import EXIT_FLAGS, Echo, address_of, dht_like, network, sockets_of, tunnels, until
from tunnel_pool.daemon.pool import PoolControl
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.config import HostPort, slot_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled import community
from tunnel_pool.pooled.scaler import PoolScaling
from tunnel_pool.rpc import control_pb2 as pb

NOWHERE = ("0.0.0.0", 0)
INFOHASH = b"e" * 20


async def until_all_ready(client, wanted):
    await until(lambda: len(client.find_circuits(hops=1)) >= wanted and client.tunnels_ready(1) >= 1.0)


async def test_a_child_that_comes_late_has_circuits_soon():
    """The bound of 15 s is for slow machines; `tunnel-pool bench idle` measures how soon it is."""
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=4) as client:
        client.build_tunnels(1)
        await until_all_ready(client, 4)
        start_s = time.monotonic()
        client.pool.open_slots([1])
        await until(lambda: client.slots_with_circuits(Lane(1)) == {0, 1})
        assert time.monotonic() - start_s < 15
        # The new child gets its share of 2 circuits, and the old child keeps its 4.
        await until(lambda: sum(slot_of(circuit.circuit_id) == 1 for circuit in client.find_circuits(hops=1)) == 2)
        assert sum(slot_of(circuit.circuit_id) == 0 for circuit in client.find_circuits(hops=1)) == 4


async def test_another_number_of_children_is_kept_though_none_is_at_work():
    """An operator who changes `workers` while the only child is being replaced is heard."""
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=4) as client:
        PoolScaling(client, WorkerRange(1, 1))
        control = PoolControl(client)
        os.kill(client.pool.pid(0), signal.SIGKILL)
        await until(lambda: not client.pool.running())
        control.scale(2, 2)
        assert control.workers() == WorkerRange(2, 2)
        await until(lambda: client.pool.running() == [0, 1])


async def test_children_hear_from_each_other_how_exits_serve(monkeypatch):
    """A child that comes later, as after another's death, is told at once."""
    monkeypatch.setattr(community, "TELL_SCORES_S", 0.05)
    told = []
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=2) as client:
        tell = client.pool.tell
        client.pool.tell = lambda slot, name, message: (told.append((slot, name, message)), tell(slot, name, message))
        client.build_tunnels(1)
        await until_all_ready(client, 2)
        (circuit, *_) = client.find_circuits(hops=1)
        with Echo() as echo:
            # What comes back is enough to show that the exit serves us.
            sending = 0
            while not any(name == "rate_exits" for _, name, _ in told) and sending < 200:
                sending += 1
                for _ in range(20):
                    client.send_data(NOWHERE, circuit.circuit_id, echo.address, NOWHERE, bytes(1000))
                await asyncio.sleep(0.05)
        (message, *_) = [message for slot, name, message in told if (slot, name) == (0, "rate_exits")]
        assert {rating.mid: round(rating.score, 1) for rating in message.ratings}[circuit.hops[-1].mid] >= 0.7
        client.pool.open_slots([1])
        await until(lambda: any((slot, name) == (1, "rate_exits") and message.ratings for slot, name, message in told))


async def test_a_draining_child_carries_on_but_gets_nothing_new():
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=2, circuits=4) as client:
        await until(lambda: all(client.pool.pictures[slot].candidates for slot in range(2)))
        client.build_tunnels(1)
        await until_all_ready(client, 4)
        kept = [circuit for circuit in client.find_circuits(hops=1) if slot_of(circuit.circuit_id) == 1]
        client.drain(1)
        await until(lambda: sum(slot_of(circuit.circuit_id) == 0 for circuit in client.find_circuits(hops=1)) == 4)
        assert kept
        assert {slot_of(circuit.circuit_id) for circuit in client.circuits_for_new_peers(1)} == {0}
        got = asyncio.get_running_loop().create_future()
        client.on_raw_data = lambda circuit, origin, data: got.set_result((circuit.circuit_id, data))
        with Echo() as echo:
            payload = dht_like(b"still here")
            client.send_data(kept[0].hop.address, kept[0].circuit_id, echo.address, NOWHERE, payload)
            assert await asyncio.wait_for(got, 10) == (kept[0].circuit_id, payload)
        pid = client.pool.pid(1)
        removed = []
        client.on_circuit_removed = lambda circuit, reason: removed.append(slot_of(circuit.circuit_id))
        client.pool.end(1, "it has been drained")
        await until(lambda: client.pool.records[1].state is ChildState.STOPPED)
        assert not psutil.pid_exists(pid)
        assert set(removed) == {1}
        assert client.pool.restarts() == 0
        await asyncio.sleep(0.5)  # in which it would have been replaced
        assert client.pool.working() == [0]


async def test_what_a_node_admits_is_shared_by_those_who_join():
    async with tunnels("pooled", [], workers=2, flags=EXIT_FLAGS) as node:
        await node.pool.all_settled()

        def told():
            return dict.fromkeys(node.pool.working(), node._told_share.circuits)

        node.set_admission(Admission(circuits=100))
        assert told() == {0: 50, 1: 50}
        node.drain(1)
        assert told()[0] == 100
        node.resume(1)
        assert told() == {0: 50, 1: 50}
        node.drain(1)
        node.pool.end(1, "it has been drained")
        await until(lambda: node.pool.records[1].state is ChildState.STOPPED)
        node.set_admission(Admission(circuits=200))
        assert told() == {0: 200}


async def test_a_draining_exit_goes_on_for_those_it_has_and_joins_no_more_until_it_is_taken_back():
    async with (
        tunnels("pooled", workers=1, flags=EXIT_FLAGS, allow_private=True) as exit_node,
        tunnels("plain", [HostPort(*exit_node.pool.listen_address(0))], circuits=1) as client,
    ):
        await until(lambda: client.get_candidates(PEER_FLAG_EXIT_BT))
        kept = client.create_circuit(1)
        await asyncio.wait_for(asyncio.shield(kept.ready), 10)
        exit_node.drain(0)
        await exit_node.pool.call(0, "heartbeat", pb.Heartbeat())  # calls are handled in order
        refused = client.create_circuit(1)
        await until(lambda: exit_node.dropped()["create_while_draining"])
        assert not refused.hops
        got = asyncio.get_running_loop().create_future()
        client.on_raw_data = lambda circuit, origin, data: got.set_result((circuit.circuit_id, data))
        with Echo() as echo:
            client.send_data(kept.hop.address, kept.circuit_id, echo.address, NOWHERE, dht_like(b"still here"))
            assert await asyncio.wait_for(got, 10) == (kept.circuit_id, dht_like(b"still here"))
        exit_node.resume(0)
        await exit_node.pool.call(0, "heartbeat", pb.Heartbeat())
        joined = client.create_circuit(1)
        assert await asyncio.wait_for(asyncio.shield(joined.ready), 10)


async def test_a_draining_childs_swarms_go_to_another_and_come_back_with_it():
    def introduced():
        return {slot_of(circuit.circuit_id) for circuit in client.find_circuits(CIRCUIT_TYPE_IP_SEEDER)}

    async with network(exits=0, relays=2) as nodes, tunnels("pooled", map(address_of, nodes), workers=2) as client:
        client.join_swarm(INFOHASH, 1, seeding=True)
        await until(introduced)
        (owner,) = introduced()
        assert client.owner_of(INFOHASH) == owner
        await until(lambda: INFOHASH in client.pool.pictures[owner].swarms)
        client.drain(owner)
        assert client.owner_of(INFOHASH) == 1 - owner
        await until(lambda: introduced() == {0, 1})
        client.resume(owner)
        assert client.owner_of(INFOHASH) == owner
        await until(lambda: introduced() == {owner})


@pytest.mark.slow
async def test_the_pool_follows_circuits_that_are_wanted_and_no_longer_wanted():
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=2) as client:
        PoolScaling(client, WorkerRange(1, 2), shrink_after_s=2)
        client.build_tunnels(1)
        await until_all_ready(client, 2)
        assert client.pool.working() == [0]
        client.circuits_needed[1] = 70
        await until(lambda: client.pool.running() == [0, 1])
        await until_all_ready(client, 70)
        client.circuits_needed[1] = 2
        await until(lambda: len(client.circuits) < 40, what="the end of circuits that nobody needs")
        await until(lambda: client.pool.records[1].state is ChildState.STOPPED)
        await until_all_ready(client, 2)
        assert client.pool.working() == [0]
        assert client.pool.restarts() == 0


@pytest.fixture
def forked():
    return {"start_method": StartMethod.FORKSERVER}


async def test_forked_children_are_ours_and_no_two_alike(forked):
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=8, circuits=8, **forked) as client:
        await client.pool.all_settled()
        assert client.pool.restarts() == 0, "PR_SET_PDEATHSIG, set before the helper's end, kills at random"
        await until(lambda: all(client.pool.pictures[slot].candidates for slot in range(8)))
        client.build_tunnels(1)
        await until_all_ready(client, 8)
        ours = {process.pid for process in psutil.Process().children()}
        pids = {client.pool.pid(slot) for slot in range(8)}
        assert {*pids, client.pool.template_pid} <= ours
        # What they draw at random differs: else ids, keys and nonces would repeat.
        below_slot = [circuit.circuit_id & 0xFFFFFF for circuit in client.circuits.values()]
        assert len(set(below_slot)) == len(below_slot)
        own = psutil.Process(min(pids))
        assert {fd.fd for fd in own.open_files()} <= {1, 2}
        template = psutil.Process(client.pool.template_pid)
        assert template.num_threads() == 1
        assert sockets_of(template, "inet") == []


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
async def test_a_forked_child_that_dies_is_replaced(forked, how):
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=2, **forked) as client:
        client.build_tunnels(1)
        await until_all_ready(client, 2)
        before = client.pool.pid(0)
        os.kill(before, how)
        await until(lambda: client.pool.pid(0) not in (None, before) and client.pool.running(), 15)
        await until_all_ready(client, 2)
        assert not psutil.pid_exists(before)


async def test_children_outlive_their_template_and_another_one_forks_the_next(forked):
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=2, **forked) as client:
        client.build_tunnels(1)
        await until_all_ready(client, 2)
        template, child = client.pool.template_pid, client.pool.pid(0)
        os.kill(template, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(template))
        os.kill(child, signal.SIGKILL)
        await until(lambda: client.pool.pid(0) not in (None, child) and client.pool.running())
        assert client.pool.template_pid != template
        await until_all_ready(client, 2)


@pytest.mark.slow
async def test_a_template_that_does_not_answer_is_replaced(forked):
    async with network() as nodes, tunnels("pooled", map(address_of, nodes), workers=1, circuits=2, **forked) as client:
        template, child = client.pool.template_pid, client.pool.pid(0)
        os.kill(template, signal.SIGSTOP)
        os.kill(child, signal.SIGKILL)
        await until(lambda: client.pool.pid(0) not in (None, child) and client.pool.running(), 20)
        assert client.pool.template_pid != template
