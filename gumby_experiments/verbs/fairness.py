"""Verbs that put flows of other kinds beside streams: a download by uTP at the same bottleneck, a hostile client."""

import asyncio
import time

import numpy as np

from tunnel_pool.gumby_experiments.nodes.nodes import Node
from tunnel_pool.gumby_experiments.nodes.progress import Progress
from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.gumby_experiments.verbs.bulk import BulkModule
from tunnel_pool.gumby_experiments.verbs.swarm import DOWNLOADER, MB, SEEDER, SwarmModule

NOTHING, UTP, UTP_LATER = "nothing", "utp", "utp_later"
UTP_EXIT, ATTACKER = "utp_exit", "attacker"
RAMP_S = 5.0  # how long one side has the link, or the flood has begun, before the other comes


class _UtpSwarm(SwarmModule):
    """A network of its own, whose exit carries datagrams alone."""

    node_roles = (UTP_EXIT,)


class FairnessModule(BulkModule):
    """Fetches by streams beside something else."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._utp = _UtpSwarm(run)

    @of_a_node
    async def fetch_beside(self, number: int, beside: str, seconds: str, size_mb: str) -> None:
        """Fetch beside `nothing`, or a download of so many MB by `utp` that has begun before, or begins later."""
        if beside == NOTHING:
            await self.fetch(number, seconds)
        elif beside in (UTP, UTP_LATER):
            await self._fetch_beside_utp(self._run.node(number), seconds, size_mb, is_later=beside == UTP_LATER)
        else:
            raise RunError(f"{beside!r} is nothing to fetch beside; there are {NOTHING}, {UTP}, {UTP_LATER}")

    async def _fetch_beside_utp(self, client: Node, seconds: str, size_mb: str, *, is_later: bool) -> None:
        """Fetch, and download by uTP at the client; set `utp_share`: of all bytes that came once both had begun."""
        utp, run = self._utp, self._run
        await utp.make_file(size_mb)
        for number in self.numbers_of(UTP_EXIT):
            await utp.start_exit(number, carried_by="datagrams")
        for number in self.numbers_of(SEEDER):
            await utp.start_seeder(number)
        (number,) = self.numbers_of(DOWNLOADER)
        node = run.node(number, client.number)
        await utp.start_downloader(number, workers="0", circuits="4")
        await utp.wait_for_circuits(number)
        download_in_s, fetch_in_s, after_s = (RAMP_S, 0.0, 2 * RAMP_S) if is_later else (0.0, RAMP_S, 0.0)
        fetching = asyncio.ensure_future(self._fetch_in(fetch_in_s, client.number, seconds, after_s))
        try:
            await asyncio.sleep(download_in_s)
            await utp.download(number)
            begun_s = time.monotonic()
            await fetching
        finally:
            fetching.cancel()
        ended_s = time.monotonic() - begun_s
        await node.heard("finished")
        progress = Progress(node.said["progress"])
        utp.add_progress(number, progress)
        times, done = zip(*progress.points, strict=True)
        if times[-1] < ended_s:
            raise RunError("the download by uTP ended before the streams did: give it a larger size_mb")
        before, after = np.interp([ended_s - float(seconds), ended_s], times, done)
        by_utp = (after - before) / MB / float(seconds)
        run.metrics["utp_share"] = round(by_utp / (by_utp + run.metrics["mb_per_s"]), 4)
        del run.metrics["added_delay_ms"]  # the link was not empty before

    async def _fetch_in(self, wait_s: float, number: int, seconds: str, after_s: float) -> None:
        await asyncio.sleep(wait_s)
        await self.fetch(number, seconds, after=str(after_s))

    @of_a_node
    async def fetch_beside_flood(self, number: int, seconds: str) -> None:
        """Fetch alone, and while the attackers flood the exit; set `kept_percent` of the speed, and what they got."""
        metrics = self._run.metrics
        await self.fetch(number, seconds)
        alone = metrics["mb_per_s"]
        flooding = [asyncio.ensure_future(self._flood(attacker, seconds)) for attacker in self.numbers_of(ATTACKER)]
        try:
            await asyncio.sleep(RAMP_S)
            await self.fetch(number, seconds)
            counts = await asyncio.gather(*flooding)
        finally:
            for each in flooding:
                each.cancel()
        metrics["kept_percent"] = round(100 * metrics["mb_per_s"] / alone, 1)
        metrics["flood_asked"] = sum(count["asked"] for count in counts)
        metrics["flood_opened"] = sum(count["opened"] for count in counts)

    async def _flood(self, number: int, seconds: str) -> dict[str, int]:
        attacker = self._run.node(number)
        flood_s = float(seconds) + RAMP_S + 5  # it outlasts the fetch
        counts: dict[str, int] = await self.at(
            attacker, "flood", f"--socks={attacker.said['port']}", *self.servers(), f"--seconds={flood_s}"
        )
        return counts
