"""Tests that strangers' datagrams are only counted: none is logged, and none keeps a node from answering."""

import asyncio
import logging
import random
import socket

import pytest
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address

from tests.worlds.network import RELAY_FLAGS, address_of, make_config, opened, until
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.steering.layout import PREFIX_BYTES

AT_ONCE = 200  # datagrams, then the node has its turn


def hostile_to(overlay, dice):
    """Yield datagrams for an overlay: cut off, and each message id with nothing, little and much behind it."""
    prefix = overlay.get_prefix()
    yield from (prefix[:length] for length in (0, 1, PREFIX_BYTES - 1, PREFIX_BYTES))
    for number in range(256):
        yield prefix + bytes([number])
        yield from (prefix + bytes([number]) + dice.randbytes(length) for length in (9, 300))


@pytest.mark.parametrize("engine", ["native", "python"], indirect=True)
async def test_each_message_of_each_overlay(engine, caplog):
    caplog.set_level(logging.INFO)
    dice = random.Random(3)
    async with opened(make_config(RELAY_FLAGS), make_config(RELAY_FLAGS)) as (node, other):
        node.announce_seeder(IntroducedSeeder(b"s" * 74, bytes(20)))
        overlays = node.ipv8.overlays
        assert [type(overlay).__name__ for overlay in overlays] == ["LocalTunnelCommunity", "CarefulDht", "CarefulPex"]
        datagrams = [datagram for overlay in overlays for datagram in hostile_to(overlay, dice)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.1", 0))
            for number, datagram in enumerate(datagrams):
                stranger.sendto(datagram, address_of(node))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0.01)
            dropped = node.dropped
            await until(lambda: sum(dropped()[why] for why in ("packet_unknown_message", "packet_failed")) > 1000)
        assert dropped()["packet_too_short"] >= 2
        other.walk_to(UDPv4Address(*address_of(node)))
        await until(lambda: other.candidates, what="an answer of the node")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
