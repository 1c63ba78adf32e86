"""What a stranger can make a node send to somebody else: never more bytes than came."""

import asyncio
import contextlib
import os
import socket

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import CreatedPayload, CreatePayload, DestroyPayload, ExtendPayload
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from overlay.node import open_overlay
from tests.network import RELAY_FLAGS, address_of, make_config, network, until, unused_host

pytestmark = pytest.mark.usefixtures("engine")


class Counted:
    """A socket that others are sent to, and what came."""

    def __init__(self):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((unused_host(), 0))
        self.sock.setblocking(False)

    @property
    def address(self):
        return UDPv4Address(*self.sock.getsockname())

    def received_bytes(self):
        total = 0
        try:
            while True:
                total += len(self.sock.recv(65535))
        except BlockingIOError:
            return total


def messages(stranger, node, victim):
    """What somebody who is nobody's peer can send, by name; `victim` is where they say that they are."""
    aim, place = victim.address, UDPv4Address(*node.endpoint.get_address())
    circuit_id = 0x01020304

    def cell(payload):
        return (
            node.get_prefix()
            + b"\0"
            + circuit_id.to_bytes(4, "big")
            + b"\1\0"
            + bytes([payload.msg_id])
            + (stranger.serializer.pack_serializable(payload)[4:])
        )

    key = default_eccrypto.generate_key("curve25519").pub().key_to_bin()
    yield "introduction request", stranger.create_introduction_request(place)
    yield "introduction response", stranger.create_introduction_response(aim, aim, 1)
    yield "puncture request", stranger.create_puncture_request(aim, aim, 1)
    yield "puncture", stranger.create_puncture(aim, aim, 1)
    yield "create", cell(CreatePayload(circuit_id, 1, key, os.urandom(32)))
    yield "extend", cell(ExtendPayload(circuit_id, 1, key, os.urandom(32), aim))
    yield "created", cell(CreatedPayload(circuit_id, 1, os.urandom(32), os.urandom(32), b""))
    yield "destroy", stranger.ezr_pack(DestroyPayload.msg_id, DestroyPayload(circuit_id, 1))
    yield "garbage", node.get_prefix() + os.urandom(200)
    yield "a cell of no circuit", node.get_prefix() + b"\0" + os.urandom(200)


async def test_a_stranger_gets_no_more_out_of_a_node_than_it_puts_in(capsys):
    config = make_config(RELAY_FLAGS, allow_private=True)
    async with network(exits=2, relays=3) as known:
        node, stranger = await open_overlay(config), await open_overlay(make_config(RELAY_FLAGS))
        try:
            for other in known:
                node.walk_to(UDPv4Address(*address_of(other)))
            await until(lambda: len(node.candidates) == 5)
            # What a node sends by itself is not counted.
            for each in (node, stranger, *known):
                with contextlib.suppress(asyncio.CancelledError):
                    await each.cancel_pending_task("discover")
                await each.ipv8.close()
            await until(lambda: not node._introductions_asked or node._introductions_asked.clear())
            victim = Counted()
            stranger.my_peer = Peer(default_eccrypto.generate_key("curve25519"), victim.address)
            # Puncture requests are what third parties get besides.
            third, create = [], node.create_puncture_request
            node.create_puncture_request = lambda *args, **more: third.append(create(*args, **more)) or third[-1]
            rows = []
            for name, packet in messages(stranger, node, victim):
                third.clear()
                victim.received_bytes()
                victim.sock.sendto(packet, node.endpoint.get_address())
                await asyncio.sleep(0.15)
                rows.append((name, len(packet), victim.received_bytes() + sum(map(len, third))))
            with capsys.disabled():
                print()
                for name, came, left in rows:
                    print(f"{name:24} {came:5} bytes in, {left:5} out, {left / came:.2f}")
            assert {name for name, came, left in rows if left > came} == set()
            victim.sock.close()
        finally:
            await node.unload()
            await stranger.unload()
