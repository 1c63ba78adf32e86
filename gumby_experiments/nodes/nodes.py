"""A run's nodes: processes of their own, told and heard line by line."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.pool.program import own_environment
from tunnel_pool.rpc.lifeline import die_with_parent

END_TIMEOUT_S = 10.0
POLL_S = 0.05
MAX_LINE_BYTES = 1 << 26


class Node:
    """Runs a node's process. `said` has the latest value of each key of its JSON lines; its stderr goes to `log`."""

    def __init__(self, number: int, role: str, host: str, folder: Path, enter: Sequence[str] = ()) -> None:
        """`enter` is put before its command, to run it in a namespace."""
        self.number = number
        self.role = role
        self.host = host
        self.folder = folder
        self.log = folder / "log"
        self.said: dict[str, Any] = {}
        self._enter = list(enter)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._may_end = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    @property
    def last_line(self) -> str:
        """Return the last line that the node wrote to stderr."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}"

    async def run_there(self, *command: str) -> str:
        """Run a short command where the node is, and return what it wrote. Raises RunError."""
        process = await asyncio.create_subprocess_exec(
            *self._enter, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise RunError(f"{command[0]} failed at node {self.number}: {output.decode(errors='replace').strip()}")
        return output.decode()

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, ends: bool = False
    ) -> None:
        """`ends`: it ends by itself when it is done. Raises RunError when it was started before."""
        if self._process is not None:
            raise RunError(f"node {self.number} ({self.role}) was started twice")
        self._may_end = ends
        self.folder.mkdir(exist_ok=True)
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C is for the experiment, which ends the others.
            self._process = await asyncio.create_subprocess_exec(
                *self._enter,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**own_environment(), **(environment or {})},
                start_new_session=True,
                limit=MAX_LINE_BYTES,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    self.said.update(said)
            self._heard.set()
        await process.wait()
        self._heard.set()

    def tell(self, **what: Any) -> None:
        """Write a JSON line to it."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def heard(self, key: str) -> Any:
        """Wait until the node has printed this key, and return its value. Raises RunError when it ends before."""
        while key not in self.said:
            await self.next_heard()
        return self.said[key]

    async def next_heard(self) -> None:
        """Wait until the node prints something. Raises RunError when it has ended, and so will print no more."""
        if self._reading is not None and self._reading.done():
            raise RunError(f"node {self.number} ({self.role}) has ended: {self.last_line}")
        self._heard.clear()
        await self._heard.wait()

    async def logged(self, pattern: "re.Pattern[str]") -> str:
        """Return the first group of the pattern, once its log has it. Raises RunError when it ends before."""
        while not (found := pattern.search(self.log.read_text(errors="replace"))):
            await self.pause(POLL_S)
        return found[1]

    async def pause(self, seconds: float) -> None:
        """Raises RunError when it has ended."""
        self.check()
        await asyncio.sleep(seconds)

    def check(self) -> None:
        """Raises RunError when it has ended and should not have."""
        if self.returncode is not None and not self._may_end:
            raise RunError(f"node {self.number} ({self.role}) has ended: {self.last_line}")

    async def ended(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Close its stdin, which tells it to end, and wait; what it said last has been read then."""
        if self._process is None:
            return
        self._may_end = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)
        await self.stop()

    async def stop(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """End the node, whatever it does: by SIGTERM, then by SIGKILL for it and what it has started."""
        process = self._process
        if process is None:
            return
        self._may_end = True
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout_s)
        # What it has started goes with it, and holds no pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reading is not None:
            await self._reading
