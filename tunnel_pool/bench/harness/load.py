"""Eight circuits through an exit of several children at one port, and what is sent over them."""

import asyncio
import socket
import statistics
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY, Circuit

from tunnel_pool.bench.harness.datagrams import DATAGRAM, PAYLOAD_BYTES, UDP_GRO, send_train, waiting
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.admission import NO_MORE_THAN_USUAL, Admission
from tunnel_pool.overlay.ground.config import COMMUNITY_ID_BYTES, HostPort, OverlayConfig
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.serving.limits import LimitsMemory
from tunnel_pool.overlay.wire.udp import bind_udp
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START
from tunnel_pool.system.errors import UserError

CIRCUITS = 8
PACE_S = 0.004
GREED = 1.5
SETTLE_S = 1.0
WAIT_S = 30.0
BUILT_AT_ONCE = 32
MB = 1_000_000

Result = dict[str, Any]


class World:
    """A node of several children, and an originator that has circuits over it."""

    def __init__(self, stack: AsyncExitStack, admission: Admission = NO_MORE_THAN_USUAL) -> None:
        self.stack = stack  # closed when all is over
        self.memory, self.own_memory = LimitsMemory(), LimitsMemory()  # the node's, and the originator's
        for memory in (self.memory, self.own_memory):
            stack.callback(memory.close)
        self._admission = admission
        self._community_id = default_eccrypto.generate_key("curve25519").pub().key_to_bin()[-COMMUNITY_ID_BYTES:]
        self.node: PooledTunnelCommunity
        self.exit: PooledTunnelCommunity | None = None
        self.originator: LocalTunnelCommunity
        self.load: Load

    @property
    def address(self) -> HostPort:
        return address_of(self.node)

    def config(
        self,
        host: str,
        flags: set[int],
        bootstrap: Sequence[HostPort] = (),
        engine: EngineChoice = EngineChoice.NATIVE,
        admission: Admission = NO_MORE_THAN_USUAL,
    ) -> OverlayConfig:
        """Return the configuration of a node of this network."""
        return OverlayConfig(
            slot=0,
            member_key=default_eccrypto.generate_key("curve25519").key_to_bin(),
            listen=HostPort(host, 0),
            peer_flags=frozenset(flags),
            community_id=self._community_id,
            bootstrap=tuple(bootstrap),
            allow_private=True,
            engine=engine,
            admission=admission,
        )

    async def start_node(self, children: int, flags: set[int]) -> None:
        """Raises UserError."""
        config = self.config("127.0.0.1", flags, admission=self._admission)
        self.node = await self._start_pool(config, children, self.memory)

    async def start_exit(self) -> None:
        """Start another node, of one child. Raises UserError."""
        config = self.config(
            "127.0.0.4", {PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY}, [self.address], admission=self._admission
        )
        self.exit = await self._start_pool(config, 1, None)

    async def _start_pool(
        self, config: OverlayConfig, children: int, limits: LimitsMemory | None
    ) -> PooledTunnelCommunity:
        pooled = PooledTunnelCommunity(config, range(children), 1, shares_port=True, limits=limits)
        self.stack.push_async_callback(pooled.unload)
        await pooled.start()
        await pooled.pool.all_settled()
        return pooled

    async def start_originator(self, circuits: int) -> None:
        """Build circuits that end at the node, or over it at the exit. Raises UserError."""
        known = [address_of(self.exit)] if self.exit is not None else []
        config = self.config("127.0.0.2", set(), [self.address, *known])
        self.originator = await open_overlay(replace(config, limits=self.own_memory.fileno()))
        self.stack.push_async_callback(self.originator.unload)
        await until(lambda: len(self.originator.candidates) > len(known), "the nodes did not find each other")
        await until(lambda: len(self.node.candidates) >= len(known), "the nodes did not find each other")
        hops = 1 + len(known)
        end = self.exit or self.node
        (end_peer,) = [peer for peer in self.originator.candidates if peer.mid == end.my_peer.mid]
        while (missing := circuits - len(self.originator.find_circuits(hops=hops))) > 0:
            # Thousands of handshakes at a time would outlive their time-outs.
            for _ in range(min(missing, BUILT_AT_ONCE)):
                self.originator.create_circuit(hops, required_exit=end_peer)
            await until_ready(self.originator, hops)


def address_of(node: PooledTunnelCommunity) -> HostPort:
    assert node.port is not None
    return HostPort(*node.port.address)


async def until(condition: Callable[[], bool], otherwise: str) -> None:
    """Raises UserError when it takes too long."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise UserError(otherwise)
        await asyncio.sleep(0.05)


async def until_ready(originator: LocalTunnelCommunity, hops: int = 1) -> list[Circuit]:
    """Return the circuits of so many hops when none is being built any more. Raises UserError."""
    await until(
        lambda: bool(originator.find_circuits(hops=hops)) and not originator.is_building(),
        "the circuits could not be built",
    )
    return list(originator.find_circuits(hops=hops))


@asynccontextmanager
async def open_world(children: int, admission: Admission = NO_MORE_THAN_USUAL) -> AsyncIterator[World]:
    """Yield an exit node, and a load over eight circuits of one hop. Raises UserError."""
    async with AsyncExitStack() as stack:
        world = World(stack, admission)
        await world.start_node(children, {PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT})
        await world.start_originator(CIRCUITS)
        world.load = stack.enter_context(Load(world.originator))
        yield world


class Load:
    """Sends over every circuit, each with a destination of its own."""

    def __init__(self, originator: LocalTunnelCommunity) -> None:
        assert originator.native is not None
        self._engine = originator.native.engine
        self._stack = ExitStack()
        self._client = self._socket("127.0.0.1")
        self._served = self._socket("127.0.0.1")
        self._outside = [self._socket("127.0.0.3") for _ in range(CIRCUITS)]
        for sock in self._outside:
            sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
        self._engine.add_association(1, self._served.fileno(), 1, self._client.getsockname())

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine.remove_association(1)
        self._stack.close()

    def _socket(self, host: str) -> socket.socket:
        return self._stack.enter_context(bind_udp(host, 0))

    def _send(self, circuit: int, payload: bytes, number: int) -> None:
        """Send to the circuit's destination, which keeps its circuit; each gets the one with the fewest."""
        head = UDP_HEADER_START + encode_address(*self._outside[circuit].getsockname())
        send_train(self._client, self._served.getsockname(), head + payload, number)

    def _receive(self) -> list[int]:
        """Return the bytes that have come, by circuit."""
        return [sum(map(len, waiting(sock, PAYLOAD_BYTES))) for sock in self._outside]

    def destination(self, circuit: int) -> tuple[str, int]:
        host, port = self._outside[circuit].getsockname()
        return host, port

    async def greedy(self, limit: float, seconds: float) -> Result:
        """Let all circuits send more than there is room for."""
        got = await self._send_steadily(GREED * limit, seconds)
        total = sum(got)
        return {
            "mb_per_s": total / seconds / MB,
            "of_limit": total / seconds / limit,
            "jain": total**2 / (CIRCUITS * sum(each**2 for each in got)),
        }

    async def steady(self, rate: float, seconds: float) -> float:
        """Return the bytes that came in so many seconds, of what all circuits send at this rate."""
        return sum(await self._send_steadily(rate, seconds))

    async def _send_steadily(self, rate: float, seconds: float) -> list[float]:
        """Send at `rate` bytes a second in all; return the bytes that came over each circuit, scaled to `seconds`."""
        per_circuit = rate / CIRCUITS
        got = [0] * CIRCUITS
        owed = [0.0] * CIRCUITS
        start_s = last_s = time.monotonic()
        counting = False
        while (now_s := time.monotonic()) < start_s + SETTLE_S + seconds:
            if not counting and now_s >= start_s + SETTLE_S:
                counting, since_s, got = True, now_s, [0] * CIRCUITS
            for circuit in range(CIRCUITS):
                owed[circuit] += per_circuit * (now_s - last_s)
                number, owed[circuit] = divmod(owed[circuit], PAYLOAD_BYTES)
                if number:
                    self._send(circuit, DATAGRAM, int(number))
            last_s = now_s
            for circuit, received in enumerate(self._receive()):
                got[circuit] += received
            await asyncio.sleep(PACE_S)
        elapsed_s = last_s - since_s
        return [each * seconds / elapsed_s for each in got]

    async def latency(self, rate: float, seconds: float) -> Result:
        """Measure the milliseconds from our sending to the destination, at a steady rate."""
        pause_s = PAYLOAD_BYTES * CIRCUITS / rate
        took_ms: list[float] = []
        await asyncio.sleep(SETTLE_S)
        self._receive()  # discard what was on its way
        next_s = time.monotonic()
        until_s = next_s + seconds
        while next_s < until_s:
            if (now_s := time.monotonic()) >= next_s:
                next_s += pause_s
                for circuit in range(CIRCUITS):
                    self._send(circuit, b"d" + struct.pack("!d", now_s) + bytes(PAYLOAD_BYTES - 10) + b"e", 1)
            for sock in self._outside:
                for data in waiting(sock, PAYLOAD_BYTES):
                    sent_s = struct.unpack_from("!d", data, 1)[0]
                    took_ms.append((time.monotonic() - sent_s) * 1000)
            await asyncio.sleep(0)
        if not took_ms:
            raise UserError("nothing came through the node")
        return {"median_ms": statistics.median(took_ms), "p99_ms": statistics.quantiles(took_ms, n=100)[98]}
