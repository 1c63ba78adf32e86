"""CPU per cell of one node that relays, exits, or carries back what its exit gets.

    relay   generator -> originator -> [relay] -> exit -> sink
    exit    generator -> originator -> [exit] -> sink
    back    originator <- [exit] <- generator

The node in brackets is another process, one of the contenders; everything
else is this process and an exit of ours. The generator keeps a window of
datagrams in flight, so that the node works as fast as it can and nothing is
lost in a full buffer. The neighbours send trains (UDP_SEGMENT) or not.
"""

import argparse
import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY, Circuit

from tunnel_pool.bench.harness.contenders import Contender
from tunnel_pool.bench.harness.datagrams import (
    DATAGRAM,
    PAYLOAD_BYTES,
    RECEIVE_BYTES,
    TRAIN,
    UDP_GRO,
    send_train,
    waiting,
)
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.config import HostPort, OverlayConfig
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.wire.udp import bind_udp
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START
from tunnel_pool.system.errors import UserError

WINDOW = 400  # half a megabyte: fits into every buffer once raised, and into most that are not
SMALL_WINDOW = 100  # for nodes with the system's default buffers, 208 KiB with the kernel's own overhead
STALL_S = 0.05
CIRCUIT_TIMEOUT_S = 30
SCENARIOS = ("relay", "exit", "back")

Result = dict[str, Any]


async def measure(scenario: str, contender: Contender, trains: bool, arguments: argparse.Namespace) -> Result:
    """Measure the microseconds of CPU for each cell, and the cells in a second. Raises UserError."""
    swarm = LocalSwarm(
        1,
        seeders=0,
        exits=0 if scenario == "relay" else 1,
        relays=1 if scenario == "relay" else 0,
        log_level="error",
        node_command=contender.node_command(),
        environment=contender.environment(),
    )
    async with swarm:
        (pid,) = swarm.pids()["relays" if scenario == "relay" else "exits"]
        async with _circuit(swarm, scenario == "relay", trains) as (originator, circuit):
            window = WINDOW if contender.raised or contender.engine is not None else SMALL_WINDOW
            drive = _Back if scenario == "back" else _Forward
            with drive(originator, circuit, swarm.client_host, trains) as flow:
                return await _run(flow, psutil.Process(pid), window, arguments.seconds)


@asynccontextmanager
async def _circuit(
    swarm: LocalSwarm, over_relay: bool, trains: bool
) -> AsyncIterator[tuple[LocalTunnelCommunity, Circuit]]:
    """Yield an originator of ours with one circuit over the node, on to an exit of ours where that relays."""
    opened: list[LocalTunnelCommunity] = []

    async def open_node(host: str, flags: set[int], bootstrap: tuple[HostPort, ...]) -> LocalTunnelCommunity:
        config = OverlayConfig(
            slot=len(opened),
            member_key=default_eccrypto.generate_key("curve25519").key_to_bin(),
            listen=HostPort(host, 0),
            peer_flags=frozenset(flags),
            community_id=swarm.community_id,
            bootstrap=bootstrap,
            allow_private=True,
            engine=EngineChoice.NATIVE,
            trains=trains,
        )
        opened.append(await open_overlay(config))
        return opened[-1]

    try:
        known = swarm.nodes
        if over_relay:
            host = swarm.client_host.rsplit(".", 1)[0] + ".2"
            exit_node = await open_node(host, {PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT}, known)
            known = (*known, HostPort(*exit_node.endpoint.get_address()))
        originator = await open_node(swarm.client_host, set(), known)
        originator.settings.max_circuits = 1
        originator.build_tunnels(2 if over_relay else 1)
        until_s = time.monotonic() + CIRCUIT_TIMEOUT_S
        while not (circuits := originator.find_circuits(hops=2 if over_relay else 1)):
            if time.monotonic() > until_s:
                raise UserError("no circuit could be built over the node")
            await asyncio.sleep(0.05)
        yield originator, circuits[0]
    finally:
        for node in opened:
            await node.unload()


class _Flow:
    """A sender and a receiver of datagrams; between them is the node."""

    def __init__(self, originator: LocalTunnelCommunity, circuit: Circuit, host: str, trains: bool) -> None:
        assert originator.native is not None
        self._trains = trains
        self.hops = circuit.goal_hops
        self.outside = bind_udp(host, 0)
        self.client = bind_udp("127.0.0.1", 0)
        self._served = bind_udp("127.0.0.1", 0)
        self._engine = originator.native.engine
        self._engine.add_association(1, self._served.fileno(), self.hops, self.client.getsockname())
        for sock in (self.outside, self.client):
            sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)

    def __enter__(self) -> "_Flow":
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine.remove_association(1)
        for sock in (self.outside, self.client, self._served):
            sock.close()

    def send_datagrams(self, sock: socket.socket, to: tuple[str, int], datagram: bytes, number: int) -> None:
        if self._trains:
            send_train(sock, to, datagram, number)
        else:
            for _ in range(number):
                sock.sendto(datagram, to)

    @staticmethod
    def receive_datagrams(sock: socket.socket, size: int) -> int:
        """Return how many datagrams of `size` bytes have come."""
        return sum(1 for _ in waiting(sock, size))

    async def prepare(self) -> None:
        """Open the way before anything is counted."""

    def send(self, number: int) -> None:
        raise NotImplementedError

    def receive(self) -> int:
        raise NotImplementedError

    def receiver(self) -> socket.socket:
        raise NotImplementedError


class _Forward(_Flow):
    """Sends from the client to the outside."""

    async def prepare(self) -> None:
        """Answer the exit once, as our exits let few datagrams out to destinations that never answer."""
        self.send(1)
        loop = asyncio.get_running_loop()
        _, source = await asyncio.wait_for(loop.sock_recvfrom(self.outside, RECEIVE_BYTES), CIRCUIT_TIMEOUT_S)
        self.outside.sendto(DATAGRAM, source)
        await asyncio.wait_for(loop.sock_recv(self.client, RECEIVE_BYTES), CIRCUIT_TIMEOUT_S)

    def send(self, number: int) -> None:
        request = UDP_HEADER_START + encode_address(*self.outside.getsockname()) + DATAGRAM
        self.send_datagrams(self.client, self._served.getsockname(), request, number)

    def receive(self) -> int:
        return self.receive_datagrams(self.outside, PAYLOAD_BYTES)

    def receiver(self) -> socket.socket:
        return self.outside


class _Back(_Flow):
    """Sends from the outside to the client."""

    async def prepare(self) -> None:
        request = UDP_HEADER_START + encode_address(*self.outside.getsockname()) + DATAGRAM
        self.client.sendto(request, self._served.getsockname())
        loop = asyncio.get_running_loop()
        self._exit = (await asyncio.wait_for(loop.sock_recvfrom(self.outside, RECEIVE_BYTES), CIRCUIT_TIMEOUT_S))[1]

    def send(self, number: int) -> None:
        self.send_datagrams(self.outside, self._exit, DATAGRAM, number)

    def receive(self) -> int:
        header = len(UDP_HEADER_START) + len(encode_address(*self.outside.getsockname()))
        return self.receive_datagrams(self.client, PAYLOAD_BYTES + header)

    def receiver(self) -> socket.socket:
        return self.client


async def _run(flow: _Flow, node: psutil.Process, window: int, seconds: float) -> Result:
    """Keep the window full; what has not come for a while is lost."""
    await flow.prepare()
    in_flight = received = lost = 0
    batch = min(TRAIN, window // 2)
    used_before = _cpu_s(node)
    start_s = last_s = now_s = time.monotonic()
    while now_s - start_s < seconds:
        while in_flight + batch <= window:
            flow.send(batch)
            in_flight += batch
        came = flow.receive()
        now_s = time.monotonic()
        if came:
            in_flight, received, last_s = max(0, in_flight - came), received + came, now_s
        elif now_s - last_s > STALL_S:
            lost, in_flight, last_s = lost + in_flight, 0, now_s
        else:
            # The engine's threads need no loop, the node's messages do.
            await asyncio.sleep(0)
    used_s = _cpu_s(node) - used_before
    elapsed_s = now_s - start_s
    if not received:
        raise UserError("nothing came through the node")
    return {
        "us_per_cell": used_s / received * 1e6,
        "cells_per_s": received / elapsed_s,
        "lost_share": lost / (lost + received),
        "busy_share": used_s / elapsed_s,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
