"""Verbs that send datagrams through a pool and back: throughput, response time, and where the time goes."""

import os
import statistics
import sys
from typing import Any

from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.gumby_experiments.verbs.swarm import EXIT, PORT, SwarmModule

ECHO, POOL = "echo", "pool"
SOCKS5_HEADER_BYTES = 10  # RFC 1928 section 7, for IPv4
Sight = tuple[float, tuple[str, int], tuple[str, int], int]
# The parts of a datagram's way there and back, in order; with steering, the first replaces the next three.
STEERED, QUEUE, MAIN, STREAM = (
    "out: socket and engine",
    "out: SOCKS5 queue",
    "out: main process",
    "out: stream and engine",
)
OUT_EXIT, ECHOED, BACK_EXIT, BACK = (
    "out: exit",
    "echo, not ours",
    "back: exit",
    "back: engine, and stream where there is one",
)
PARTS = (STEERED, QUEUE, MAIN, STREAM, OUT_EXIT, ECHOED, BACK_EXIT, BACK)


class DatagramModule(SwarmModule):
    """Starts a pool with a SOCKS5 server, an echo outside, and a client that loads it or probes it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._echoes: list[str] = []

    def _program(self, module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", f"tunnel_pool.gumby_experiments.{module}", *arguments]

    @of_a_node
    async def start_echo(self, number: int, ports: str) -> None:
        """Start an echo with a port for each circuit, as a destination keeps its circuit."""
        node = self._run.node(number)
        await node.start(self._program("datagram_load", "echo", node.host, f"--ports={ports}"))
        self._echoes = [f"--echo={node.host}:{port}" for port in await node.heard("echo")]

    @of_a_node
    async def start_pool(self, number: int, workers: str, circuits: str, steering: str = "auto") -> None:
        """Start the pool and wait until all circuits stand."""
        node = self._run.node(number)
        await node.start(
            self._program(
                "nodes.socks_node", f"--workers={workers}", f"--circuits={circuits}", f"--steering={steering}",
                "--hops=1", *self.client_arguments(node),
            )
        )  # fmt: skip
        await node.heard("port")
        self._run.happened("circuits stand", number)

    async def _client(self, number: int, role: str, *arguments: str) -> Any:
        (pool,) = self._run.with_role(POOL)
        node = self._run.another(number)
        await node.start(self._program("datagram_load", role, f"--socks={pool.said['port']}", *arguments))
        done = await node.heard("done")
        await node.ended()
        return done

    @of_a_node
    async def load(self, number: int, window: str, seconds: str) -> None:
        """Keep so many datagrams on their way over each circuit."""
        self._run.sampler.sample()
        before = self._run.sampler.cpu_seconds()
        measured = await self._client(number, "load", *self._echoes, f"--window={window}", f"--seconds={seconds}")
        self._run.sampler.sample()
        used_s = self._run.sampler.cpu_seconds()[POOL] - before[POOL]
        self._run.metrics |= {name: round(value, 4) for name, value in measured.items()}
        self._run.metrics["pool_us_per_datagram"] = round(
            used_s * 1e6 / (measured["datagrams_per_s"] * float(seconds)), 3
        )

    @of_a_node
    async def probe(self, number: int, probes: str) -> None:
        """Add rows to the table `breakdown`: microseconds of each part of the way, the median of all probes."""
        if os.geteuid() != 0:
            self._run.happened("no breakdown: only root sees the packets on loopback")
            return
        (pool,) = self._run.with_role(POOL)
        seen = await self._client(number, "probe", self._echoes[0], f"--probes={probes}")
        await pool.ended()
        handled = {size: (begun_s, ended_s) for size, begun_s, ended_s in pool.said["handled"]}
        exits = {(self._run.node(at).host, PORT) for at, role in self._run.roles.items() if role == EXIT}
        parts: dict[str, list[float]] = {}
        for size, sights in seen["sights"].items():
            for part, seconds in _parts(
                int(size), sights, tuple(seen["client"]), exits, handled.get(int(size))
            ).items():
                parts.setdefault(part, []).append(seconds)
        if not parts:
            raise RunError("no probe was seen on its whole way")
        for part, times in parts.items():
            row = {
                "part": part,
                "place": PARTS.index(part),
                "median_us": round(statistics.median(times) * 1e6, 1),
                "probes": len(times),
            }
            self._run.add_row("breakdown", **row)


def _parts(
    size: int,
    sights: list[Sight],
    client: tuple[str, int],
    exits: set[tuple[str, int]],
    handled: tuple[float, float] | None,
) -> dict[str, float]:
    """Return the seconds of each part of one probe's way, in order; empty when it was not seen everywhere."""
    steps: dict[str, float] = {}
    for time_s, (from_host, from_port), (to_host, to_port), seen in sights:
        source, destination = (from_host, from_port), (to_host, to_port)
        if source == client and seen == size + SOCKS5_HEADER_BYTES:
            steps["asked"] = time_s
        elif destination in exits and seen > size:
            steps["sealed"] = time_s
        elif seen == size and "left" not in steps:
            steps["left"] = time_s
        elif seen == size:
            steps["echoed"] = time_s
        elif source in exits and seen > size:
            steps["back"] = time_s
        elif destination == client and seen == size + SOCKS5_HEADER_BYTES:
            steps["answered"] = time_s
    if len(steps) < 6:
        return {}
    out: dict[str, float]
    if handled is not None:
        begun_s, ended_s = handled
        out = {
            QUEUE: begun_s - steps["asked"],
            MAIN: ended_s - begun_s,
            STREAM: steps["sealed"] - ended_s,
        }
    else:
        out = {STEERED: steps["sealed"] - steps["asked"]}
    return {
        **out,
        OUT_EXIT: steps["left"] - steps["sealed"],
        ECHOED: steps["echoed"] - steps["left"],
        BACK_EXIT: steps["back"] - steps["echoed"],
        BACK: steps["answered"] - steps["back"],
    }
