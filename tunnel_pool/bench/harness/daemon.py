"""A daemon of its own process, as its owner starts it, to be measured from outside."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import libtorrent as lt
from prometheus_client.parser import text_string_to_metric_families

from tunnel_pool.daemon.server.metrics import LOOP_DELAY
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.program import own_environment, own_executable
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.errors import UserError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
WAIT_S = 120.0
POLL_S = 0.05
# Nothing of it leaves this machine; of options given twice the last one holds.
PRIVATE = (
    "--bootstrap=none",
    "--dht=none",
    "--allow-private",
    "--plain-listen=127.0.0.1:0",
    "--min-free=1 MB",
    "--settle=0",
)
_LISTENING = re.compile(rb"http://([\d.]+:\d+)/")


class LoopDelays(NamedTuple):
    """Holds the delays of a daemon's timers: their sum, and how many were no longer than each bound in seconds."""

    sum_s: float
    timers: Mapping[float, float]

    def since(self, before: "LoopDelays") -> "LoopDelays":
        return LoopDelays(
            self.sum_s - before.sum_s,
            {bound_s: count - before.timers[bound_s] for bound_s, count in self.timers.items()},
        )


class Client(NamedTuple):
    """Asks a running daemon's API."""

    base: str
    http: aiohttp.ClientSession
    pid: int

    async def get(self, path: str) -> Any:
        async with self.http.get(self.base + path) as response:
            response.raise_for_status()
            return await response.json()

    async def add(self, **wish: Any) -> str:
        """Return the infohash."""
        async with self.http.post(f"{self.base}/api/torrents", json=wish) as response:
            response.raise_for_status()
            return str((await response.json())["torrent"]["infohash"])

    async def remove(self, infohash: str) -> None:
        async with self.http.delete(f"{self.base}/api/torrents/{infohash}?files=true") as response:
            response.raise_for_status()

    async def loop_delays(self) -> LoopDelays:
        """Return the delays of the loop's timers so far, from the daemon's own histogram."""
        async with self.http.get(f"{self.base}/metrics") as response:
            text = await response.text()
        samples = [sample for found in text_string_to_metric_families(text) for sample in found.samples]
        sum_s = next(sample.value for sample in samples if sample.name == f"{LOOP_DELAY}_sum")
        timers = {float(s.labels["le"]): s.value for s in samples if s.name == f"{LOOP_DELAY}_bucket"}
        return LoopDelays(sum_s, timers)

    async def until_begun(self, infohash: str) -> dict[str, Any]:
        """Return the torrent, when its first bytes are there. Raises UserError."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    torrent: dict[str, Any] = await self.get(f"/api/torrents/{infohash}")
                    if torrent["progress"] > 0:
                        return torrent
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise UserError(f"the download did not begin in {WAIT_S:.0f} s") from None


def magnet_of(swarm: LocalSwarm) -> str:
    """Return the magnet link of the swarm's file, which names its seeders."""
    return magnet_link(swarm.torrent, swarm.seeders)


def magnet_link(torrent: Path, seeders: Sequence[HostPort]) -> str:
    """Return the magnet link of a torrent file, which names its seeders."""
    link = str(lt.make_magnet_uri(lt.load_torrent_file(str(torrent))))
    return link + "".join(f"&x.pe={peer.host}:{peer.port}" for peer in seeders)


def network_of(swarm: LocalSwarm) -> list[str]:
    """Return the options by which a command joins the swarm's network."""
    nodes = ",".join(map(str, swarm.nodes))
    return [
        f"--listen={swarm.client_host}:0",
        f"--bootstrap={nodes}",
        f"--community-id={swarm.community_id.hex()}",
    ]


@asynccontextmanager
async def started(folder: Path, more: Sequence[str] = ()) -> AsyncIterator[Client]:
    """Start a daemon whose state and downloads are in the folder. Raises UserError."""
    arguments = [f"--state={folder / 'state'}", f"--folder={folder / 'downloads'}", "--rpc=127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *own_executable(),
        "daemon",
        *arguments,
        *PRIVATE,
        *more,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=own_environment(),
    )
    reading: asyncio.Task[None] | None = None
    try:
        address = await _address(process)
        reading = asyncio.get_running_loop().create_task(_pass_on(process))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
            yield Client(f"http://{address}", http, process.pid)
    finally:
        await _end(process)
        if reading is not None:
            await reading


async def _address(process: asyncio.subprocess.Process) -> str:
    """Raises UserError."""
    assert process.stderr is not None
    said = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S):
            async for line in process.stderr:
                if found := _LISTENING.search(line):
                    return found[1].decode()
                said = line
    raise UserError(f"the daemon did not start: {said.decode(errors='replace').strip()}")


async def _pass_on(process: asyncio.subprocess.Process) -> None:
    """Pass on what the daemon writes to stderr, but for INFO, so that its pipe does not fill."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b" INFO " not in line:
            os.write(2, line)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
