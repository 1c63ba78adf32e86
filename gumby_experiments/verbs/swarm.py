"""Verbs of a private swarm: seeders, exits and relays, and who downloads through them."""

import asyncio
import re
import secrets
import sys
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.nodes.nodes import Node
from tunnel_pool.gumby_experiments.nodes.progress import PROGRESS, Progress
from tunnel_pool.gumby_experiments.nodes.router import DEVICE
from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node, of_the_run
from tunnel_pool.overlay.ground.config import COMMUNITY_ID_BYTES, HostPort
from tunnel_pool.pool.program import own_executable
from tunnel_pool.pooled.scaler import circuits_for
from tunnel_pool.private_swarm.swarm import (
    make_random_file,
    node_arguments,
    same_bytes,
    seeder_arguments,
    write_torrent,
)

PORT = 17_000  # all nodes use the same port, as each has an address of its own
EXIT, RELAY, SEEDER, DOWNLOADER = "exit", "relay", "seeder", "downloader"
MB = 1_000_000
ALL = "all"
STREAMS = "streams"
HIDDEN = "hidden"
REACHABLE = re.compile("(Reachable: every torrent has its introduction point)")


class SwarmModule:
    """Downloads through a swarm; `metrics` gets the speed and the CPU that everybody used meanwhile."""

    node_roles: tuple[str, ...] = (EXIT, RELAY)  # that are in its network

    def __init__(self, run: Run) -> None:
        self._run = run
        self.community_id = secrets.token_bytes(COMMUNITY_ID_BYTES)
        self._file: Path
        self.torrent: Path
        self.size_bytes = 0
        self._is_hidden = False
        self._cpu_before: dict[str, float] = {}
        self._wanted_circuits: dict[int, int] = {}  # by the number of the downloader

    @of_the_run
    def annotate(self, what: str) -> None:
        """Write a remark into the log of events."""
        self._run.happened(what)

    @of_the_run
    async def make_file(self, size_mb: str) -> None:
        """Make a file of random bytes, the same for the same seed, and a torrent of it."""
        self.size_bytes = int(float(size_mb) * MB)
        folder = self._run.folder / "seed"
        folder.mkdir()
        self._file, self.torrent = folder / "random.bin", self._run.folder / "random.torrent"
        await asyncio.to_thread(make_random_file, self._file, self.size_bytes, None, self._run.random.randbytes)
        await asyncio.to_thread(write_torrent, self._file, self.torrent)

    @of_a_node
    async def set_link(  # noqa: PLR0917 - as a scenario names them
        self, number: int, delay_ms: str = "0", jitter_ms: str = "0", loss_percent: str = "0", rate_mbit: str = "0",
        queue_ms: str = "200",
    ) -> None:  # fmt: skip
        """Set each way between the node and the middle."""
        numbers = {
            "delay_ms": delay_ms,
            "jitter_ms": jitter_ms,
            "loss_percent": loss_percent,
            "rate_mbit": rate_mbit,
            "queue_ms": queue_ms,
        }
        await self._run.links.set(number, **{name: float(text) for name, text in numbers.items()})

    @of_a_node
    async def set_wild_link(self, number: int, least_ms: str, most_ms: str, rate_mbit: str = "0") -> None:
        """Set a delay drawn from the range, and a tenth of it as jitter: the same for the same seed and run."""
        delay_ms = self._run.random.uniform(float(least_ms), float(most_ms))
        await self._run.links.set(number, delay_ms=delay_ms, jitter_ms=delay_ms / 10, rate_mbit=float(rate_mbit))

    @of_a_node
    async def start_exit(
        self, number: int, workers: str = "0", engine: str = "auto", carried_by: str = STREAMS
    ) -> None:
        """Start an exit that carries TCP by streams, too, or nothing but datagrams."""
        protocols = "all" if carried_by == STREAMS else "bittorrent,dht,udp-trackers,ipv8,http"
        await self._start_node(self._run.node(number), [f"--exit={protocols}"], int(workers), engine)

    @of_a_node
    async def start_relay(self, number: int, workers: str = "0", engine: str = "auto") -> None:
        await self._start_node(self._run.node(number), [], int(workers), engine)

    async def _start_node(self, node: Node, more: list[str], workers: int, engine: str) -> None:
        known = [address for address in self.addresses() if address.host != node.host]
        address = HostPort(node.host, PORT)
        arguments = node_arguments(address, known, self.community_id, node.folder / "state", workers)
        await node.start([*own_executable(), "node", *more, f"--engine={engine}", "--log-level=error", *arguments])

    def addresses(self) -> list[HostPort]:
        """Return the addresses of the exits and relays that there are to be."""
        return [HostPort(self._run.node(number).host, PORT) for number in self.numbers_of(*self.node_roles)]

    def client_arguments(self, node: Node) -> list[str]:
        """Return the arguments that let a program with tunnels take part in the network."""
        return [
            f"--listen={node.host}:0",
            f"--bootstrap={','.join(map(str, self.addresses()))}",
            "--allow-private",
            f"--community-id={self.community_id.hex()}",
            f"--state={node.folder / 'state'}",
        ]

    def numbers_of(self, *roles: str) -> list[int]:
        """Return the numbers of the nodes with one of these roles, whether they run or not."""
        return [number for number, role in self._run.roles.items() if role in roles]

    @of_a_node
    async def start_seeder(self, number: int, speed_mb: str = "0", seeded: str = "openly", hops: str = "1") -> None:
        """Start a seeder that sends so many MB/s at most, 0 is no limit; or a `hidden` one, over so many hops."""
        node = self._run.node(number)
        if seeded == HIDDEN:
            self._is_hidden = True
            network = self.client_arguments(node)
            await node.start([*own_executable(), "seed", str(self._file), f"--hops={hops}", *network])
            await node.logged(REACHABLE)
            (self.torrent,) = (node.folder / "state" / "torrents").iterdir()
            return
        arguments = seeder_arguments(self.torrent, self._file.parent, node.host, int(float(speed_mb) * MB))
        await node.start([*own_executable(), *arguments])

    @of_a_node
    async def start_downloader(  # noqa: PLR0917 - as a scenario names them
        self,
        number: int,
        workers: str = "2",
        hops: str = "1",
        circuits: str = "",
        circuits_per_worker: str = "",
        cores: str = "0",
        engine: str = "auto",
        start_method: str = "spawn",
    ) -> None:
        """Start it with so many circuits, or so many for each worker; it may use so many `cores`, 0 for all."""
        node = self._run.node(number)
        if circuits_per_worker:
            circuits = str(int(circuits_per_worker) * max(1, int(workers)))
        self._wanted_circuits[number] = int(circuits or circuits_for(int(workers)))
        more = [f"--circuits={circuits}"] if circuits else []
        await node.start([
            sys.executable, "-m", "tunnel_pool.gumby_experiments.nodes.downloader", *more,
            f"--workers={workers}", f"--hops={hops}", f"--cores={cores}", f"--engine={engine}",
            f"--start-method={start_method}", *self.client_arguments(node),
        ])  # fmt: skip

    @of_a_node
    async def wait_for_circuits(self, number: int, at_least: str = "1") -> None:
        """Wait until the downloader has so many circuits; `all`: as many as it is to keep."""
        node = self._run.node(number)
        self._run.metrics["first_circuit_s"] = await node.heard("first_circuit_s")
        self._run.happened("first circuit", number)
        wanted = self._wanted_circuits[number] if at_least == ALL else int(at_least)
        while node.said["circuits"] < wanted:
            await node.next_heard()

    @of_a_node
    async def download(self, number: int) -> None:
        """Begin the download; `wait_until_downloaded` waits for the end."""
        node = self._run.node(number)
        folder = node.folder / "downloads"
        folder.mkdir()
        seeders = [] if self._is_hidden else self._run.with_role(SEEDER)
        peers = [(seeder.host, await seeder.heard("port")) for seeder in seeders]
        self._run.sampler.sample()
        self._cpu_before = self._run.sampler.cpu_seconds()
        node.tell(download={"torrent": str(self.torrent), "folder": str(folder), "peers": peers})
        self._run.happened("download begins", number)

    @of_a_node
    async def wait_until_downloaded(self, number: int) -> None:
        """Wait for the end of the download, and set its metrics."""
        node = self._run.node(number)
        seconds = await node.heard("finished")
        self._run.sampler.sample()
        self._run.happened("download complete", number)
        self.add_progress(number, Progress(node.said["progress"]))
        used = {
            role: total - self._cpu_before.get(role, 0.0) for role, total in self._run.sampler.cpu_seconds().items()
        }
        speed = self.size_bytes / MB / seconds
        self._run.metrics |= {
            "download_s": seconds,
            "mean_mb_per_s": round(speed, 3),
            "downloader_cpu_s": round(used[DOWNLOADER], 2),
            "downloader_cpu_s_per_gb": round(used[DOWNLOADER] / self.size_bytes * 1e9, 2),
            "downloader_cpu_percent": round(100 * used[DOWNLOADER] / seconds, 1),
            "downloader_cpu_percent_per_kb_s": round(100 * used[DOWNLOADER] / seconds / (speed * 1000), 6),
            "all_cpu_s_per_gb": round(sum(used.values()) / self.size_bytes * 1e9, 2),
        }

    @of_a_node
    async def set_mtu(self, number: int, mtu: str) -> None:
        """Have the node's link take packets of so many bytes at most."""
        await self._run.node(number).run_there("ip", "link", "set", "dev", DEVICE, "mtu", mtu)

    @of_the_run
    async def count_fragments(self) -> None:
        """Set the metric `fragments`: how many the kernels of all nodes have made of what was too large (RFC 4293)."""
        counts = [await self._run.node(number).run_there("cat", "/proc/net/snmp") for number in self._run.roles]
        self._run.metrics["fragments"] = sum(map(_fragments_made, counts))

    def add_progress(self, number: int, progress: Progress) -> None:
        for row in progress.rows():
            self._run.add_row(PROGRESS, node=number, **row)

    @of_a_node
    async def check_file(self, number: int) -> None:
        """End the downloader, so that all is written, and compare byte for byte. Raises RunError when files differ."""
        node = self._run.node(number)
        await node.ended()
        if not await asyncio.to_thread(same_bytes, self._file, node.folder / "downloads" / self._file.name):
            raise RunError("what was downloaded differs from the file")

    @of_a_node
    async def check_peers(self, number: int) -> None:
        """End a seeder; it must have seen exits alone as peers. Raises RunError."""
        node = self._run.node(number)
        await node.ended()
        exits = {self._run.node(other).host for other, role in self._run.roles.items() if role == EXIT}
        seen: set[Any] = set(node.said["peers"])
        if not seen <= exits:
            raise RunError(f"seeder {number} has seen others than exits: {', '.join(sorted(seen - exits))}")

    @of_a_node
    async def stop(self, number: int) -> None:
        await self._run.node(number).stop()


def _fragments_made(snmp: str) -> int:
    """Return FragCreates of /proc/net/snmp (proc(5)), in which a line of names comes before one of values."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Ip:"))
    return int(dict(zip(names, values, strict=True))["FragCreates"])
