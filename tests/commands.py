"""Running the program as its users do: as a process, from outside."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
MODULE = [sys.executable, "-m", "tunnel_pool"]


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

    @property
    def pid(self):
        return self.process.pid

    async def until_line(self, matches, timeout_s=60):
        """The first line for which it holds, past lines included."""

        async def wait():
            seen = 0
            while True:
                while seen < len(self.lines):
                    seen += 1
                    if matches(self.lines[seen - 1]):
                        return self.lines[seen - 1]
                assert self.process.returncode is None, self.lines
                self._line.clear()
                await self._line.wait()

        return await asyncio.wait_for(wait(), timeout_s)

    async def until_downloaded(self, megabytes, timeout_s=60):
        """When the progress says that at least this much is there."""

        def enough(line):
            words = line.split()
            return words[1:2] == ["of"] and float(words[0]) >= megabytes

        await self.until_line(enough, timeout_s)

    async def ended(self, timeout_s=90):
        """(exit code, last line of stdout as JSON, lines of stderr)."""
        output = await asyncio.wait_for(self.process.stdout.read(), timeout_s)
        await self.process.wait()
        await self._reader
        lines = output.decode().splitlines()
        return self.process.returncode, json.loads(lines[-1]) if lines else None, self.lines

    def family(self):
        """It and every process below it."""
        me = psutil.Process(self.pid)
        return [me, *me.children(recursive=True)]

    def pool_children(self):
        return [
            process
            for process in psutil.Process(self.pid).children()
            if process.status() != psutil.STATUS_ZOMBIE and "--child" in process.cmdline()
        ]


@asynccontextmanager
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
    family = running.family()
    try:
        yield running
    finally:
        if process.returncode is None:
            family = running.family()
            process.kill()
            psutil.wait_procs(family, timeout=3)
        await process.wait()
        await running._reader
