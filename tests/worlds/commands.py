"""Runs the program as its users do: as a process, from outside."""

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent
MODULE = [sys.executable, "-m", "tunnel_pool"]
# The kernel ends them; with a busy disk a killed process may take seconds over the pages it had mapped.
GONE_WITHIN_S = 20


class Command:
    """A running command; its stderr is read line by line as it comes."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self._line = asyncio.Event()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self):
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            self._line.set()
        self._line.set()  # stderr has ended: wake up `until_line`

    @property
    def pid(self):
        return self.process.pid

    async def until_line(self, matches, timeout_s=60):
        """Wait for a line of stderr for which `matches` holds, and return it; earlier lines count, too."""

        async def wait():
            seen = 0
            while True:
                while seen < len(self.lines):
                    seen += 1
                    if matches(self.lines[seen - 1]):
                        return self.lines[seen - 1]
                assert not self._reader.done(), f"it has ended, and said: {self.lines}"
                self._line.clear()
                await self._line.wait()

        try:
            return await asyncio.wait_for(wait(), timeout_s)
        except TimeoutError:
            raise AssertionError(f"no such line in {timeout_s} s: {self.lines}") from None

    async def until_downloaded(self, megabytes, timeout_s=60):
        """Wait until the progress says that at least this much is there."""

        def enough(line):
            words = line.split()
            return words[1:2] == ["of"] and float(words[0]) >= megabytes

        await self.until_line(enough, timeout_s)

    async def ended(self, timeout_s=90):
        """Wait for the end; return the exit code, stdout's last line as JSON or None, and the lines of stderr."""
        try:
            output = await asyncio.wait_for(self.process.stdout.read(), timeout_s)
        except TimeoutError:
            raise AssertionError(f"still running after {timeout_s} s, and said: {self.lines[-20:]}") from None
        await self.process.wait()
        await self._reader
        lines = output.decode().splitlines()
        return self.process.returncode, json.loads(lines[-1]) if lines else None, self.lines

    def family(self):
        """Return the command's process and all of its descendants."""
        me = psutil.Process(self.pid)
        return [me, *me.children(recursive=True)]

    def pool_children(self):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            return [process for process in psutil.Process(self.pid).children() if is_pool_child(process)]
        return []


def is_pool_child(process):
    """Return whether a process is a pool's child, started as a program or forked from a template with one thread."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = process.cmdline()
        return "--child" in words or ("--template" in words and process.num_threads() > 1)
    return False


def has_ended(process):
    """Return whether a process runs no more; nobody need have collected its exit code."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_all_ended(processes):
    """Wait for processes that end by themselves, as children do once they hear that their parent has ended."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while left := [process for process in processes if not has_ended(process)]:
        assert time.monotonic() < deadline_s, left
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def command(*arguments, program=MODULE, environment=None, **options):
    """Start `tunnel-pool ARGUMENTS`; whatever is left of it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *program,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TERM": "dumb", **(environment or {})},
        **options,
    )
    running = Command(process)
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):  # the command has failed and ended at once
        family = running.family()
    try:
        yield running
    finally:
        if process.returncode is None:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, and we have not heard of it yet
                family = running.family()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            psutil.wait_procs(family, timeout=GONE_WITHIN_S)
        await process.wait()
        await running._reader
