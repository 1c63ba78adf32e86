"""Tests a node of several children at one port: peers see one node, and a child's death ends only its circuits."""

import asyncio
import contextlib
import errno
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    PEER_FLAG_EXIT_BT,
)

from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import (
    EXIT_FLAGS,
    RELAY_FLAGS,
    Echo,
    address_of,
    dht_like,
    make_config,
    network,
    tunnels,
    until,
)
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pooled.shared_port import MAX_FILTERED_LIKE, MAX_FILTERED_PREFIXES
from tunnel_pool.steering.cells import PY_IPV8, bucket_of

CLIENTS = 4
CIRCUITS_OF_A_CLIENT = 8
SWARMS = 16  # of which three in eight, by chance, meet at two children of the node
PACE_S = 0.02
WAIT_S = 10.0  # for what is still on its way


@asynccontextmanager
async def clients_of(node, number=CLIENTS, circuits=CIRCUITS_OF_A_CLIENT):
    """Yield clients in this process, each with circuits of one hop that end at the node."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(number):
            client = await stack.enter_async_context(tunnels("plain", [node.port.address], circuits=circuits))
            client.build_tunnels(1)
            opened.append(client)
        for client in opened:
            await until(lambda client=client: client.tunnels_ready(1) == 1.0)
        yield opened


class Load:
    """Sends numbered datagrams over every circuit of the clients to an echo, and counts the answers."""

    def __init__(self, clients, echo):
        self._clients, self._echo = clients, echo
        self.sent = Counter()
        self.came = Counter()
        for client in clients:
            client.on_raw_data = lambda circuit, origin, data: self.came.update([circuit.circuit_id])
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self):
        while True:
            for client in self._clients:
                for circuit in client.find_circuits(hops=1):
                    circuit_id = circuit.circuit_id
                    self.sent[circuit_id] += 1
                    text = dht_like(b"%d" % self.sent[circuit_id])
                    client.send_data(circuit.hop.address, circuit_id, self._echo.address, ("0.0.0.0", 0), text)
                    await asyncio.sleep(0)
            await asyncio.sleep(PACE_S)

    async def stop(self):
        """Stop sending, and wait up to WAIT_S seconds for the answers that are still on their way."""
        self._task.cancel()
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.lost(self.sent), WAIT_S)

    def lost(self, circuit_ids):
        return {id_: self.sent[id_] - self.came[id_] for id_ in circuit_ids if self.sent[id_] != self.came[id_]}


def exits_by_slot(node):
    return {slot: set(picture.exits) for slot, picture in node.pool.pictures.items()}


def circuits_of(clients):
    return {circuit.circuit_id for client in clients for circuit in client.find_circuits(hops=1)}


@ENGINES_PYTHON_SLOW
async def test_others_know_the_node_once_and_each_circuit_has_one_child(engine):
    async with (
        network(exits=1) as (other,),
        tunnels("pooled", [address_of(other)], 4, flags=EXIT_FLAGS, allow_private=True, engine=engine) as node,
    ):
        await node.pool.all_settled()
        async with clients_of(node) as clients:
            for peer in [other, *clients]:
                entries = [known for known in peer.get_peers() if known.mid == node.my_peer.mid]
                assert [entry.address for entry in entries] == [node.port.address]
                assert node.port.address in {known.address for known in peer.candidates}
            with Echo() as echo:
                load = Load(clients, echo)
                await until(lambda: min(load.came.values(), default=0) >= 20 and len(load.came) >= 32)
                await load.stop()
            assert load.lost(circuits_of(clients)) == {}
            live = circuits_of(clients)

            def have_carried():
                exits = [known for picture in node.pool.pictures.values() for known in picture.exits.values()]
                return {known.circuit_id for known in exits if known.bytes_up} >= live

            await until(have_carried, what="the pictures of all")
            by_slot = exits_by_slot(node)
            assert all(by_slot.values())
            for slot, ids in by_slot.items():
                assert {node.port.buckets.owners[bucket_of(id_)] for id_ in ids} == {slot}
            assert node.dropped()["create_of_another_bucket"] == 0


async def kill(node, slot):
    os.kill(node.pool.pid(slot), signal.SIGKILL)
    await until(lambda: node.pool.records[slot].restarts == 1 and slot in node.pool.running())


async def stop(node, slot):
    os.kill(node.pool.pid(slot), signal.SIGSTOP)
    await until(lambda: node.pool.records[slot].restarts == 1 and slot in node.pool.running())


async def drain(node, slot):
    node.drain(slot)
    await until(lambda: not node.port.buckets.buckets_of(slot))


async def add(node, slot):
    node.pool.open_slots([4])
    await until(lambda: 4 in node.pool.running() and len(node.port.buckets.buckets_of(4)) >= 50)


@pytest.mark.parametrize(
    ("what", "circuits_die"),
    [
        pytest.param(kill, True, id="kill", marks=pytest.mark.slow),
        pytest.param(stop, True, id="stop", marks=pytest.mark.slow),
        pytest.param(drain, False, id="drain", marks=pytest.mark.slow),
        pytest.param(add, False, id="add", marks=pytest.mark.slow),
    ],
)
async def test_circuits_of_other_children_lose_nothing(what, circuits_die):
    async with tunnels("pooled", (), 4, flags=EXIT_FLAGS, allow_private=True) as node:
        await node.pool.all_settled()
        async with clients_of(node) as clients:
            await until(lambda: sum(map(len, exits_by_slot(node).values())) >= CLIENTS * CIRCUITS_OF_A_CLIENT)
            theirs = exits_by_slot(node)[1]
            others = circuits_of(clients) - theirs
            assert theirs
            assert len(others) >= CLIENTS
            with Echo() as echo:
                load = Load(clients, echo)
                await until(lambda: min(load.came.values(), default=0) >= 5)
                await what(node, 1)
                before = load.came.copy()
                kept = others if circuits_die else others | theirs
                await until(lambda: all(load.came[id_] >= before[id_] + 20 for id_ in kept))
                await load.stop()
            assert load.lost(kept) == {}
            if what is add:
                assert set(node.port.buckets.owners) == {0, 1, 2, 3, 4}


@pytest.mark.slow
async def test_new_circuits_go_to_a_child_that_was_added_and_live_ones_stay():
    async with (
        tunnels("pooled", (), 1, flags=EXIT_FLAGS, allow_private=True) as node,
        clients_of(node, number=2, circuits=16) as clients,
    ):
        old = circuits_of(clients)
        await until(lambda: exits_by_slot(node)[0] >= old)
        node.pool.open_slots([1])
        await until(lambda: len(node.port.buckets.buckets_of(1)) == 128)
        assert set(node.port.buckets.stayed) <= old
        async with clients_of(node, number=1, circuits=16) as (newcomer,):
            await until(lambda: len(exits_by_slot(node)[1]) >= 3)
            assert not exits_by_slot(node)[1] & old
            assert exits_by_slot(node)[0] >= old
            new = circuits_of([newcomer])
            await until(lambda: exits_by_slot(node)[0] & new)  # children tell of routes once a second
            await asyncio.gather(*(newcomer.remove_circuit(id_, destroy=3) for id_ in new))
        node.drain(1)
        await until(lambda: not node.port.buckets.buckets_of(1))
        node.pool.end(1, "drained")
        await until(lambda: node.pool.records[1].state is ChildState.STOPPED)
        with Echo() as echo:
            load = Load(clients, echo)
            await until(lambda: all(load.came[id_] >= 5 for id_ in old))
            await load.stop()


@pytest.mark.slow
@ENGINES_PYTHON_SLOW
async def test_a_rendezvous_links_circuits_of_two_children(engine):
    """Seeder and downloader in this process; every relay that they know is the one node of four children."""
    async with tunnels("pooled", (), 4, flags=RELAY_FLAGS) as node, AsyncExitStack() as stack:
        await node.pool.all_settled()
        swarms = [os.urandom(20) for _ in range(SWARMS)]
        exits = [await open_overlay(make_config(EXIT_FLAGS, [node.port.address], allow_private=True))]
        stack.push_async_callback(exits[0].unload)
        known = [node.port.address, address_of(exits[0])]
        seeder, downloader = [
            await stack.enter_async_context(tunnels("plain", known, flags=frozenset())) for _ in range(2)
        ]
        for infohash in swarms:
            seeder.join_swarm(infohash, 1, seeding=True)
        await until(lambda: len(seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER)) == SWARMS)
        received = asyncio.Queue()
        for end in (seeder, downloader):
            end.on_raw_data = lambda circuit, origin, data: received.put_nowait((circuit, data))
        for infohash in swarms:
            downloader.join_swarm(infohash, 1, lambda address: None, seeding=False)
        linked = await until(lambda: all_linked(downloader), 60)
        for circuit in linked:
            await send_both_ways(downloader, circuit, seeder, received)
        await until(lambda: is_of_two_children(node))


def all_linked(downloader):
    linked = [circuit for circuit in downloader.find_circuits(CIRCUIT_TYPE_RP_DOWNLOADER) if circuit.e2e]
    return linked if len(linked) == SWARMS else None


async def send_both_ways(downloader, circuit, seeder, received):
    nowhere = ("0.0.0.0", 0)
    downloader.send_data(circuit.hop.address, circuit.circuit_id, nowhere, nowhere, b"hello")
    at_seeder, data = await asyncio.wait_for(received.get(), 10)
    assert data == b"hello"
    for number in range(20):
        text = b"answer %d" % number
        seeder.send_data(at_seeder.hop.address, at_seeder.circuit_id, nowhere, nowhere, text)
        assert (await asyncio.wait_for(received.get(), 10))[1] == text
        downloader.send_data(circuit.hop.address, circuit.circuit_id, nowhere, nowhere, text)
        assert (await asyncio.wait_for(received.get(), 10))[1] == text


def is_of_two_children(node):
    """Return whether some rendezvous has its halves in different children."""
    return any(
        relay.rendezvous and node.port.buckets.slot_of(relay.circuit_id) != node.port.buckets.slot_of(relay.next_id)
        for picture in node.pool.pictures.values()
        for relay in picture.relays.values()
    )


async def test_nobody_waits_for_a_tick_of_a_child(monkeypatch):
    monkeypatch.setattr("tunnel_pool.pooled.community.SYNC_INTERVAL_S", 3600.0)
    async with network() as nodes, tunnels("pooled", map(address_of, nodes)) as client:
        await until(lambda: client.get_candidates(PEER_FLAG_EXIT_BT))
        client.build_tunnels(1)
        await until(lambda: client.tunnels_ready(1) == 1.0)


async def test_a_circuit_that_is_destroyed_ends_at_its_child():
    async with tunnels("pooled", (), 3, flags=EXIT_FLAGS, allow_private=True) as node:
        await node.pool.all_settled()
        async with clients_of(node, number=1) as (client,):
            ids = circuits_of([client])
            await until(lambda: set().union(*exits_by_slot(node).values()) >= ids)
            client.circuits_needed.clear()
            await asyncio.gather(*(client.remove_circuit(id_, destroy=3) for id_ in ids))
            await until(lambda: not set().union(*exits_by_slot(node).values()) & ids, 10)
            assert PEER_FLAG_EXIT_BT in client.candidates[node.my_peer]


async def test_a_filter_that_the_kernel_has_no_room_for_leaves_the_one_before(monkeypatch):
    """net.core.optmem_max, 20 KB on older kernels, is all that filters may take."""
    async with tunnels("pooled", [], 2, flags=EXIT_FLAGS, allow_private=True) as node:
        await node.pool.all_settled()
        port = node.port
        swarms = [os.urandom(20) for _ in range(MAX_FILTERED_PREFIXES)]

        def no_room(*arguments):
            raise OSError(errno.ENOMEM, "no room")

        with monkeypatch.context() as full:
            full.setattr(port._group, "let_in", no_room)
            port.front.set_introduced({IntroducedSeeder(b"a", swarms[0]): [1]})
            port._filter_own()
            async with clients_of(node, 1, 2):
                pass
        for many in (2 * MAX_FILTERED_PREFIXES, MAX_FILTERED_LIKE):  # and PEX of each, beside the tunnels' own
            swarms = [os.urandom(20) for _ in range(many)]
            port.front.set_introduced({IntroducedSeeder(swarm, swarm): [1] for swarm in swarms})
            port._filter_own()
            is_too_many = len(port.front.prefixes()) > MAX_FILTERED_LIKE
            assert port._filtered == ([PY_IPV8] if is_too_many else sorted(port.front.prefixes()))
            async with clients_of(node, 1, 2):
                pass
