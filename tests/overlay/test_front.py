"""Tests the overlay of a node whose children share its port: its announces, and the messages passed to children."""

import os

from ipv8.messaging.anonymization.payload import CreateE2EPayload

from tests.worlds.network import RELAY_FLAGS, make_config, until
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.node import open_front
from tunnel_pool.overlay.wire.udp import bind_udp


async def front_of():
    config = make_config(RELAY_FLAGS)
    return await open_front(config, bind_udp(*config.listen))


async def test_a_swarm_is_announced_while_there_is_a_seeder_in_it():
    front = await front_of()
    overlays = len(front.ipv8.overlays)
    swarm, other = os.urandom(20), os.urandom(20)
    a, b, c = (IntroducedSeeder(*of) for of in ((b"a", swarm), (b"b", swarm), (b"c", other)))
    front.set_introduced({a: [1], b: [2, 7], c: [3]})
    assert set(front.pex) == {swarm, other}
    assert len(front.prefixes()) == overlays + 2
    assert len(await front.look_up_swarm(swarm)) == 2
    front.set_introduced({b: [2]})
    assert set(front.pex) == {swarm}
    assert [point.seeder_pk for point in await front.look_up_swarm(swarm)] == [b"b"]
    front.set_introduced({})
    assert not front.pex
    assert not front.is_introduced(b)
    assert len(front.ipv8.overlays) == overlays
    assert not front.ipv8.strategies
    await front.unload()


async def test_a_destroy_message_goes_to_the_child_of_its_circuit_and_garbage_to_nobody():
    front = await front_of()
    other = await front_of()
    handed = []
    front.deliver = lambda circuit_id, source, packet: handed.append((circuit_id, source))
    other.send_destroy(front.endpoint.get_address(), 0x01020304, 3)
    await until(lambda: handed)
    assert handed == [(0x01020304, other.endpoint.get_address())]
    other.endpoint.send(front.endpoint.get_address(), front.get_prefix() + b"\x0a" + os.urandom(9))
    other.endpoint.send(front.endpoint.get_address(), front.get_prefix() + b"\x0d" + os.urandom(200))
    other.send_destroy(front.endpoint.get_address(), 0x05060708, 3)
    await until(lambda: len(handed) == 2)
    assert handed[1][0] == 0x05060708
    await front.unload()
    await other.unload()


async def test_who_asks_for_a_seeder_is_heard_by_each_child_that_introduces_one():
    """Every child gets a copy only now and then: most requests of a flood go to one child."""
    front, other = await front_of(), await front_of()
    handed = []
    front.deliver = lambda circuit_id, source, packet: handed.append(circuit_id)
    seeder = IntroducedSeeder(b"s" * 74, os.urandom(20))
    front.set_introduced({seeder: [1, 2]})
    for info_hash in (os.urandom(20), seeder.info_hash):
        request = CreateE2EPayload(1, info_hash, seeder.seeder_key, os.urandom(32))
        other.send_packet(front.endpoint.get_address(), other.ezr_pack(request.msg_id, request, sig=False))
    await until(lambda: len(handed) == 2)
    assert sorted(handed) == [1, 2]
    assert front.dropped()["create_e2e_refused"] == 1
    for _ in range(100):
        other.send_packet(front.endpoint.get_address(), other.ezr_pack(request.msg_id, request, sig=False))
    await until(lambda: front.dropped()["create_e2e_not_copied"] >= 80)
    await until(lambda: len(handed) >= 102)
    assert len(handed) <= 102 + 20
    await front.unload()
    await other.unload()
