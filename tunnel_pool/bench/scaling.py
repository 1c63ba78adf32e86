"""Measures a relay of several children at one port: cells a second, by children and by circuits.

    originator -> [node] -> exit -> sockets that nobody reads

The node's children are pinned, each to a core of its own. On few cores whoever
makes the cells would compete with who relays them, so they take turns: while
the children stand still (SIGSTOP), the originator, which is this process,
fills their sockets' buffers; then originator and exit stand still, and the
children relay what lies there. Only this time counts, and the children's CPU in
it; cells per second of CPU leave out what the cores give to others meanwhile,
this process' looking at the end among them.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY
from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness.datagrams import DATAGRAM, TRAIN, send_train
from tunnel_pool.bench.harness.load import Result, World
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.wire.udp import bind_udp, receive_buffer_bytes
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START
from tunnel_pool.system.errors import UserError

CHILDREN = (1, 2)
CIRCUITS = (1, 10, 100, 1000)
CIRCUITS_OF_CHILDREN = 32
UNBOUNDED = Admission(0, 0, 0, 0, 0)
MOST_CELLS = 10_000  # the most cells for one child at a time
OVERFLOW = 3  # times what a buffer is said to hold: circuits are not spread evenly, and the kernel gives twice as much
AT_ONCE = 10  # trains
LOOK_S = 0.00025
ASLEEP = 0.7  # the share of the shortest time a child took for which we do not look again
REST_S = 0.005  # the time that heartbeats and the like are given
STALL_S = 0.02  # cells that the originator has not made by then are lost
CALM_S = 0.02  # when no cell was relayed for so long, all are relayed
HOPS = 2
SMALL_BUFFER_BYTES = 4096


async def measure(seconds: float) -> Result:
    """Raises UserError."""
    cores = sorted(os.sched_getaffinity(0))
    by_children, by_circuits = {}, {}
    for children in [number for number in CHILDREN if number <= len(cores)]:
        async with _open(children, CIRCUITS_OF_CHILDREN) as chain:
            by_children[str(children)] = await chain.run(seconds)
    for circuits in CIRCUITS:
        async with _open(1, circuits) as chain:
            by_circuits[str(circuits)] = await chain.run(seconds)
    return {"children": by_children, "circuits": by_circuits, "cores": len(cores)}


@asynccontextmanager
async def _open(children: int, circuits: int) -> AsyncIterator["_Chain"]:
    async with AsyncExitStack() as stack:
        world = World(stack, UNBOUNDED)
        await world.start_node(children, {PEER_FLAG_RELAY})
        await world.start_exit()
        await world.start_originator(circuits)
        yield _Chain(world, stack, circuits)


class _Chain:
    def __init__(self, world: World, stack: AsyncExitStack, circuits: int) -> None:
        assert world.exit is not None
        assert world.originator.native is not None
        self._world = world
        self._relays = _processes(world.node.pool)
        self._exits = _processes(world.exit.pool)
        _pin(self._relays)
        # A destination keeps its circuit, and each new one gets the circuit with the fewest.
        sockets = [stack.enter_context(_small_socket("127.0.0.3")) for _ in range(circuits)]
        self._heads = [UDP_HEADER_START + encode_address(*sock.getsockname()) for sock in sockets]
        self._turn = 0
        self._originated_bytes = self._relayed_bytes = 1
        self._client = stack.enter_context(bind_udp("127.0.0.1", 0))
        self._served = stack.enter_context(bind_udp("127.0.0.1", 0))
        room = OVERFLOW * receive_buffer_bytes(self._served) // len(DATAGRAM)
        self._trains = max(1, min(MOST_CELLS, room) * len(self._relays) // TRAIN)
        engine = world.originator.native.engine
        engine.add_association(1, self._served.fileno(), HOPS, self._client.getsockname())
        stack.callback(engine.remove_association, 1)
        # Whatever happens, nobody is left standing still.
        stack.callback(_signal, [*self._relays, *self._exits], signal.SIGCONT)

    async def run(self, seconds: float) -> Result:
        """Fill and relay, again and again, until the children have had so many seconds."""
        await self._open_the_way()
        await self._fill()
        _, least_s = self._relay(0.0)
        used_s = [0.0] * len(self._relays)
        cells, elapsed_s = 0, 0.0
        while elapsed_s < seconds:
            await self._fill()
            before = _used_s(self._relays)
            relayed, took_s = self._relay(least_s)
            used_s = [used + now - then for used, now, then in zip(used_s, _used_s(self._relays), before, strict=True)]
            least_s = min(least_s, took_s)
            cells, elapsed_s = cells + relayed, elapsed_s + took_s
            await asyncio.sleep(REST_S)
        if not cells:
            raise UserError("nothing came through the node")
        return {
            "cells_per_s": cells / elapsed_s,
            "us_per_cell": sum(used_s) / cells * 1e6,
            "busy": [used / elapsed_s for used in used_s],
            "capacity": len(used_s) * cells / sum(used_s),
        }

    async def _fill(self) -> None:
        """Fill the children's buffers while they stand still."""
        _signal(self._relays, signal.SIGSTOP)
        started = self._originated()
        for number in range(1, self._trains + 1):
            self._send()
            if number % AT_ONCE == 0 or number == self._trains:
                until_s = time.monotonic() + STALL_S
                while self._originated() - started < number * TRAIN and time.monotonic() < until_s:  # noqa: ASYNC110
                    await asyncio.sleep(0)

    def _relay(self, least_s: float) -> tuple[int, float]:
        """Relay what lies in the children's buffers while all others stand still; return the cells and the seconds."""
        _signal(self._exits, signal.SIGSTOP)
        with _running_at_once():
            before, start_s = self._relayed(), time.monotonic()
            _signal(self._relays, signal.SIGCONT)
            # The loop stands still, too: it would take time from a child.
            time.sleep(ASLEEP * least_s)
            relayed, end_s = self._relayed(), time.monotonic()
            while time.monotonic() < end_s + CALM_S:
                if (now := self._relayed()) > relayed:
                    relayed, end_s = now, time.monotonic()
                time.sleep(LOOK_S)
        _signal(self._exits, signal.SIGCONT)
        return relayed - before, end_s - start_s

    async def _open_the_way(self) -> None:
        """Open the way, and find how many bytes a cell has, as originator and node count them."""
        for _ in self._heads:
            self._send()
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.5)
        originated, relayed = self._originated(), self._relayed()
        self._send()
        await asyncio.sleep(0.5)
        self._originated_bytes = max(1, (self._originated() - originated) // TRAIN)
        self._relayed_bytes = max(1, (self._relayed() - relayed) // TRAIN)

    def _send(self) -> None:
        head = self._heads[self._turn % len(self._heads)]
        self._turn += 1
        send_train(self._client, self._served.getsockname(), head + DATAGRAM, TRAIN)

    def _originated(self) -> int:
        """Return the cells that were originated so far."""
        return self._world.own_memory.counted().up["own"] // self._originated_bytes

    def _relayed(self) -> int:
        """Return the cells that were relayed so far."""
        return self._world.memory.counted().up["relayed"] // self._relayed_bytes


def _processes(pool: ProcessPool) -> list[psutil.Process]:
    return [psutil.Process(pool.pid(slot)) for slot in pool.working()]


def _pin(children: Sequence[psutil.Process]) -> None:
    """Pin each process to a core of its own."""
    for child, core in zip(children, sorted(os.sched_getaffinity(0)), strict=False):
        for thread in child.threads():
            os.sched_setaffinity(thread.id, {core})


@contextmanager
def _running_at_once() -> Iterator[None]:
    """Run as SCHED_FIFO, where that is allowed, so that processes woken on our core don't preempt us."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _used_s(processes: Sequence[psutil.Process]) -> list[float]:
    """Return each engine's CPU, to the nanosecond (Documentation/scheduler/sched-stats.rst): no clock tick of 10 ms."""
    return [sum(map(_thread_s, _engine_threads(process.pid))) for process in processes]


def _engine_threads(pid: int) -> list[Path]:
    """Return the threads of a process except the first, which is Python's."""
    return [path for path in Path(f"/proc/{pid}/task").iterdir() if path.name != str(pid)]


def _thread_s(path: Path) -> float:
    return int((path / "schedstat").read_text().split()[0]) / 1e9


def _small_socket(host: str) -> socket.socket:
    """Return a socket with a small buffer: what comes when that is full costs the kernel little."""
    sock = bind_udp(host, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    return sock


def describe(result: Result) -> str:
    console = Console(width=110)
    lines = []
    for title, name in (
        (f"{CIRCUITS_OF_CHILDREN} circuits relayed, by children", "children"),
        ("Relayed by one child, by circuits", "circuits"),
    ):
        table = Table(title=title)
        for column in (name, "cells/s", "us CPU a cell", "busy", "cells/s of CPU", "against the first"):
            table.add_column(column, justify="right")
        first = next(iter(result[name].values()))["capacity"]
        for number, row in result[name].items():
            busy = " ".join(f"{share:.0%}" for share in row["busy"])
            numbers = f"{row['cells_per_s']:.0f}", f"{row['us_per_cell']:.2f}", busy, f"{row['capacity']:.0f}"
            table.add_row(number, *numbers, f"{row['capacity'] / first:.2f}")
        with console.capture() as captured:
            console.print(table)
        lines.append(captured.get())
    lines.append(f"{result['cores']} cores; who makes the cells stands still while they are relayed")
    return "\n".join(lines)
