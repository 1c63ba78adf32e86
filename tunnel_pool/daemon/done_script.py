"""A program of the owner's that runs when a torrent is finished, with the environment that Transmission gives."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tunnel_pool import __version__
from tunnel_pool.daemon.server.shown import name_in_folder
from tunnel_pool.daemon.torrents.view import TorrentView

MAX_AT_ONCE = 4
KILLED_AFTER_S = 2.0  # from SIGTERM to SIGKILL
KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")  # of our own environment

logger = logging.getLogger(__name__)


def environment_of(torrent: TorrentView, own: Mapping[str, str], now_s: float) -> dict[str, str]:
    """Return the variables of Transmission's docs/Scripts.md, and of `own` what a program needs to run.

    What else there is, a password for example, is not for scripts.
    """
    record = torrent.record
    trackers = ",".join(url for urls in record.trackers for url in urls)
    return {
        **{name: own[name] for name in KEPT if name in own},
        "TR_APP_VERSION": __version__,
        "TR_TIME_LOCALTIME": time.asctime(time.localtime(now_s)),
        "TR_TORRENT_BYTES_DOWNLOADED": str(torrent.totals.downloaded),
        "TR_TORRENT_DIR": record.folder,
        "TR_TORRENT_HASH": torrent.hash_string,
        "TR_TORRENT_ID": str(record.number),
        "TR_TORRENT_LABELS": ",".join(record.labels),
        "TR_TORRENT_NAME": name_in_folder(torrent).replace("\0", ""),
        "TR_TORRENT_PRIORITY": str(record.bandwidth_priority),
        "TR_TORRENT_TRACKERS": trackers.replace("\0", ""),
    }


class DoneScript:
    """Runs the program, a few at a time and each for so long; `close` ends those that still run."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._limit_s = limit_s
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def run_for(self, torrent: TorrentView) -> None:
        """Start the program for a torrent that is finished, now or when there is a place."""
        environment = environment_of(torrent, os.environ, time.time())
        task = asyncio.get_running_loop().create_task(self._run(environment))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, environment: dict[str, str]) -> None:
        async with self._slots:
            try:
                process = await asyncio.create_subprocess_exec(
                    self._path,
                    env=environment,
                    cwd="/",
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                logger.error("--script-done can't be run: %s", error.strerror)
                return
            try:
                async with asyncio.timeout(self._limit_s):
                    code = await process.wait()
                if code:
                    logger.warning("--script-done ended with exit code %d", code)
            except TimeoutError:
                logger.error("--script-done did not end within %.0f s, and is ended", self._limit_s)
                await _end(process)
            except asyncio.CancelledError:
                logger.warning("--script-done is ended, as the daemon stops")
                await _end(process)
                raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program and what it has started, first with SIGTERM; who left its session goes on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILLED_AFTER_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
