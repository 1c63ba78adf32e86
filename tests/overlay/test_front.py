"""The overlay of a node whose children share its port: what it announces for them, and what it hands on."""

import os

from overlay.node import open_front
from overlay.udp import bind_udp
from tests.network import RELAY_FLAGS, make_config, until


async def front_of():
    config = make_config(RELAY_FLAGS)
    return await open_front(config, bind_udp(*config.listen))


async def test_a_swarm_is_announced_while_there_is_a_seeder_in_it():
    front = await front_of()
    overlays = len(front.ipv8.overlays)
    swarm, other = os.urandom(20), os.urandom(20)
    front.set_introduced({b"a": (1, swarm), b"b": (2, swarm), b"c": (3, other)})
    assert set(front.pex) == {swarm, other}
    assert len(front.prefixes()) == overlays + 2
    assert len(await front.look_up_swarm(swarm)) == 2
    front.set_introduced({b"b": (2, swarm)})
    assert set(front.pex) == {swarm}
    assert [point.seeder_pk for point in await front.look_up_swarm(swarm)] == [b"b"]
    front.set_introduced({})
    assert not front.pex
    assert not front.intro_point_for
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
