"""Verbs of a daemon in a private swarm, as its owner starts it and drives it over its API."""

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from tunnel_pool.bench.harness.daemon import PRIVATE, Client, magnet_link
from tunnel_pool.gumby_experiments.nodes.progress import Progress
from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.gumby_experiments.verbs.swarm import MB, SEEDER, SwarmModule
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.program import own_executable

CLOSE_TIMEOUT_S = 60.0
_LISTENING = re.compile(r"http://([\d.]+:\d+)/")


class DaemonModule(SwarmModule):
    """Drives one daemon."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self._client: Client
        self._infohash = ""
        self._opened_s = 0.0
        self._progress = Progress()  # its times are seconds since the link was opened

    async def close(self) -> None:
        await self._http.close()

    @of_a_node
    async def start_daemon(self, number: int, workers: str = "2") -> None:
        """Start the daemon and wait until it listens."""
        node = self._run.node(number)
        begun_s = time.monotonic()
        arguments = [f"--state={node.folder / 'state'}", f"--folder={node.folder / 'downloads'}"]
        await node.start([
            *own_executable(), "daemon", *arguments, "--rpc=127.0.0.1:0", *PRIVATE, f"--workers={workers}", "--hops=1",
            f"--listen={node.host}:0", f"--bootstrap={','.join(map(str, self.addresses()))}",
            f"--community-id={self.community_id.hex()}",
        ])  # fmt: skip
        address = await node.logged(_LISTENING)
        assert node.pid is not None
        self._client = Client(f"http://{address}", self._http, node.pid)
        self._run.metrics["start_s"] = round(time.monotonic() - begun_s, 3)
        self._run.happened("daemon listens", number)

    @of_a_node
    async def open_magnet(self, number: int) -> None:
        """Open a magnet link of the file that names its seeders, and return when its metadata is there."""
        seeders = [HostPort(seeder.host, await seeder.heard("port")) for seeder in self._run.with_role(SEEDER)]
        self._opened_s = time.monotonic()
        self._infohash = await self._client.add(source=magnet_link(self.torrent, seeders), hops=1)
        await self._until(number, "metadata", lambda torrent: torrent["size_bytes"] > 0)

    @of_a_node
    async def wait_until_complete(self, number: int) -> None:
        await self._until(number, "first_bytes", lambda torrent: torrent["progress"] > 0)
        await self._until(number, "complete", lambda torrent: torrent["progress"] == 1)
        self.add_progress(number, self._progress)
        seconds = self._run.metrics["complete_s"] - self._run.metrics["metadata_s"]
        self._run.metrics["mean_mb_per_s"] = round(self.size_bytes / MB / seconds, 2)

    async def _until(self, number: int, what: str, holds: Any) -> None:
        """Wait until the condition holds, and set the metric `what`_s: seconds since the link was opened."""
        node = self._run.node(number)
        while True:
            torrent = await self._client.get(f"/api/torrents/{self._infohash}")
            done_bytes = int(torrent["progress"] * (torrent["size_bytes"] or 0))
            self._progress.add(time.monotonic() - self._opened_s, done_bytes)
            if holds(torrent):
                break
            await node.pause(0.05)
        self._run.metrics[f"{what}_s"] = round(time.monotonic() - self._opened_s, 3)
        self._run.happened(what, number)

    @of_a_node
    async def close_daemon(self, number: int) -> None:
        """Send SIGTERM, and wait until the daemon has ended."""
        node = self._run.node(number)
        self._run.sampler.sample()
        begun_s = time.monotonic()
        await node.stop(CLOSE_TIMEOUT_S)
        if node.returncode != 0:
            raise RunError(f"the daemon did not end well: {node.last_line}")
        self._run.metrics["close_s"] = round(time.monotonic() - begun_s, 3)
        self._run.happened("daemon has ended", number)

    @of_a_node
    async def be_idle(self, number: int, seconds: str) -> None:
        """Rest for so long, then set the metrics of what all processes of the node used meanwhile."""
        node = self._run.node(number)
        before, delays_before = self._used(number), await self._client.loop_delays()
        self._run.happened("idle from here", number)
        await node.pause(float(seconds))
        after, delays = self._used(number), (await self._client.loop_delays()).since(delays_before)
        hours = float(seconds) / 3600
        for bound_s, timers in by_bound(delays.timers):
            self._run.add_row("loop_delays", delay_ms=1000 * bound_s, timers=timers)
        self._run.metrics |= {
            "idle_cpu_percent": round(100 * (after["cpu_s"] - before["cpu_s"]) / float(seconds), 2),
            "read_mb_per_hour": round((after["read_bytes"] - before["read_bytes"]) / MB / hours, 2),
            "written_mb_per_hour": round((after["written_bytes"] - before["written_bytes"]) / MB / hours, 2),
            "rss_mb": round(after["rss_bytes"] / MB, 1),
            "rss_growth_mb": round((after["rss_bytes"] - before["rss_bytes"]) / MB, 2),
            "lateness_ms": round(1000 * delays.sum_s / max(delays.timers[math.inf], 1), 3),
        }

    def _used(self, number: int) -> dict[str, float]:
        """Return CPU seconds, memory and disk bytes of all processes of the node, as sampled now."""
        known = len(self._run.sampler.rows)
        self._run.sampler.sample()
        rows = [row for row in self._run.sampler.rows[known:] if row["node"] == number]
        total = {name: sum(row.get(name, 0) for row in rows) for name in ("rss_bytes", "read_bytes", "written_bytes")}
        return {**total, "cpu_s": sum(row["cpu_user_s"] + row["cpu_system_s"] for row in rows)}


def by_bound(timers: Mapping[float, float]) -> Iterator[tuple[float, float]]:
    """Yield each bound of a histogram, and how many of its timers no lower bound takes in."""
    counted = 0.0
    for bound_s in sorted(timers):
        yield bound_s, timers[bound_s] - counted
        counted = timers[bound_s]
