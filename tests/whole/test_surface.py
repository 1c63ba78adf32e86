"""Tests the pooled community against py-ipv8's class: each public name is in the table, and is as the table says."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity, HiddenTunnelSettings
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_SPEED_TEST
from ipv8.REST.tunnel_endpoint import TunnelEndpoint

from tests.worlds.network import RELAY_FLAGS, address_of, make_config, network, tunnels, until, unused_host
from tests.worlds.plain_node import open_plain
from tunnel_pool.overlay.hidden_swarms.services import WatchedSwarm
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.pooled import surface
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.surface import SURFACE, Kind, LivesInChildrenError

INFOHASH = b"s" * 20


class PlainHidden(HiddenTunnelCommunity):
    community_id = bytes(range(20))


async def public_names():
    """Return the public methods and attributes of an open HiddenTunnelCommunity."""
    community = await open_plain(unused_host(), set(), PlainHidden, HiddenTunnelSettings)
    try:
        names = {*dir(HiddenTunnelCommunity), *vars(community)}
    finally:
        await community.unload()
    return {name for name in names if not name.startswith("_")}


async def test_every_public_name_of_py_ipv8s_class_is_in_the_table():
    names = await public_names()
    assert names - SURFACE.keys() == set(), "new in py-ipv8, or forgotten"
    assert SURFACE.keys() - names == set(), "gone from py-ipv8"


async def test_each_name_is_as_the_table_says():
    async with tunnels("pooled", workers=1) as pooled:
        assert isinstance(pooled, HiddenTunnelCommunity)
        for name, entry in SURFACE.items():
            if entry.kind is Kind.CHILDREN:
                with pytest.raises(LivesInChildrenError, match=name):
                    getattr(pooled, name)
                assert not hasattr(pooled, name)
                continue
            getattr(pooled, name)
            inherited = getattr(HiddenTunnelCommunity, name, None)
            is_same = getattr(PooledTunnelCommunity, name, None) is inherited and name not in vars(pooled)
            assert is_same is (entry.kind is Kind.SAME), name


def test_the_table_in_docs_is_fresh():
    assert (Path(__file__).parent.parent.parent / "docs" / "SURFACE.md").read_text() == surface.markdown()


@asynccontextmanager
async def rest_api(community):
    """Serve py-ipv8's own REST views of our community, and yield a function that sends a GET and returns the answer."""

    class Session:
        def get_overlay(self, overlay_class):
            return community if isinstance(community, overlay_class) else None

    endpoint = TunnelEndpoint()
    endpoint.initialize(Session())
    endpoint.setup_routes()
    runner = web.AppRunner(endpoint.app)
    await runner.setup()
    site = web.TCPSite(runner, unused_host(), 0)
    await site.start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as session:

        async def get(path):
            async with session.get(f"http://{host}:{port}{path}") as response:
                text = await response.text()
                assert response.status == 200, text
                return json.loads(text) if text.startswith(("{", "[")) else text

        yield get
    await runner.cleanup()


@pytest.mark.slow
async def test_py_ipv8s_rest_views_answer_from_the_pool():
    async with network(exits=1, relays=2) as nodes, tunnels("pooled", [address_of(n) for n in nodes]) as pooled:
        pooled.build_tunnels(1)
        pooled.join_swarm(INFOHASH, 1, seeding=True)
        await until(lambda: pooled.tunnels_ready(1) == 1.0, what="circuits")
        await until(lambda: pooled.find_circuits(CIRCUIT_TYPE_IP_SEEDER), what="an introduction point")
        async with rest_api(pooled) as get:
            circuits = (await get("/circuits"))["circuits"]
            assert {(c["type"], c["goal_hops"]) for c in circuits} >= {("DATA", 1), ("IP_SEEDER", 2), ("LOOKUP", 1)}
            data = next(circuit for circuit in circuits if circuit["type"] == "DATA")
            assert data["verified_hops"] == [nodes[0].my_peer.mid.hex()]
            assert data["state"] == "READY"
            assert PEER_FLAG_SPEED_TEST in data["exit_flags"]
            (swarm,) = (await get("/swarms"))["swarms"]
            assert (swarm["info_hash"], swarm["seeding"]) == (INFOHASH.hex(), True)
            peers = (await get("/peers"))["peers"]
            assert {(peer["ip"], peer["port"]) for peer in peers} == {tuple(address_of(node)) for node in nodes}
            assert (await get("/settings"))["settings"]["max_circuits"] == pooled.settings.max_circuits
            speed = await get(f"/circuits/{data['circuit_id']}/test?test_time_ms=300")
            assert json.loads(speed.removeprefix("speed: "))["down"] > 0
            assert (await get(f"/swarms/{INFOHASH.hex()}/size"))["swarm_size"] >= 0


@pytest.mark.slow
async def test_what_children_do_for_others_is_shown_and_can_be_ended():
    async with network(exits=1, relays=1) as nodes:
        known = [address_of(node) for node in nodes]
        async with tunnels("pooled", known, workers=1, flags=RELAY_FLAGS, allow_private=True) as pooled:
            await until(lambda: len(pooled.candidates) == 2)
            host, port = pooled.pool.listen_address(0)
            client = await open_overlay(make_config(frozenset(), [(host, port)], allow_private=True))
            try:
                await until(lambda: client.get_candidates(1))
                client.watch([WatchedSwarm(INFOHASH, 1, True)])
                us = client.get_candidates(1)[0]
                await until(lambda: pooled.exit_sockets, what="a circuit that ends at the child")
                circuit = client.create_circuit(1, required_exit=us)
                assert await circuit.ready
                await until(lambda: circuit.circuit_id in pooled.exit_sockets)
                async with rest_api(pooled) as get:
                    exits = (await get("/exits"))["exits"]
                    assert circuit.circuit_id in {known["circuit_from"] for known in exits}
                removed = await pooled.remove_exit_socket(circuit.circuit_id, "by hand", destroy=1)
                assert removed.circuit_id == circuit.circuit_id
                await until(lambda: circuit.circuit_id not in client.circuits, what="the client to hear of it")
                assert await pooled.remove_exit_socket(12345) is None
            finally:
                await client.unload()


@pytest.mark.slow
async def test_a_relayed_circuit_is_shown_and_can_be_ended():
    async with network(exits=1, relays=0) as nodes:
        known = [address_of(node) for node in nodes]
        async with tunnels("pooled", known, workers=1, flags=RELAY_FLAGS, allow_private=True) as pooled:
            await until(lambda: pooled.candidates)
            client = await open_overlay(make_config(frozenset(), [pooled.pool.listen_address(0), *known]))
            try:
                await until(lambda: len(client.get_candidates(1)) == 2)
                circuit = client.create_circuit(2)
                assert await circuit.ready
                await until(lambda: circuit.circuit_id in pooled.relay_from_to)
                async with rest_api(pooled) as get:
                    relays = (await get("/relays"))["relays"]
                directions = {relay["circuit_from"]: relay["direction"] for relay in relays}
                assert directions[circuit.circuit_id] == "forward"
                assert sorted(directions.values()) == ["backward", "forward"]
                await pooled.remove_relay(circuit.circuit_id, "by hand")
                await until(lambda: circuit.circuit_id not in pooled.relay_from_to)
            finally:
                await client.unload()


async def test_swarm_pictures_follow_the_child():
    async with network(exits=0, relays=3) as nodes:
        known = [address_of(node) for node in nodes]
        async with (
            tunnels("plain", known, allow_private=True, flags=frozenset()) as seeder,
            tunnels("pooled", known, workers=1, allow_private=True) as pooled,
        ):
            seeder.join_swarm(INFOHASH, 1, seeding=True)
            linked = asyncio.get_running_loop().create_future()
            pooled.join_swarm(INFOHASH, 1, linked.set_result, seeding=False)
            address = await asyncio.wait_for(linked, 60)
            swarm = pooled.swarms[INFOHASH]
            await until(lambda: swarm.get_num_connections() == 1)
            (circuit,) = [circuit for circuit, _ in swarm.connections.values()]
            assert pooled.ip_to_circuit_id(address[0]) == circuit.circuit_id
            assert swarm.get_num_seeders() == 1
            assert swarm.last_lookup > 0
            assert pooled.select_circuit(address, 1) is circuit
