"""Gives nodes their place: on loopback addresses, or behind links in network namespaces of their own."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from tunnel_pool.gumby_experiments.nodes.router import address
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.system.errors import UserError

END_TIMEOUT_S = 10.0
NEEDED = ("ip", "tc", "nsenter", "unshare")
KINDS = {
    "netem": "network namespaces, veth pairs and tc netem",
    "tun": "network namespaces and TUN devices; this kernel has no netem, so a process of ours delays and drops",
}
LOOPBACK = "loopback"


class Links(Protocol):
    """Describes how nodes reach each other."""

    kind: str

    def place(self, number: int) -> tuple[str, Sequence[str]]:
        """Return a node's address, and what is put before its command."""

    async def set(self, number: int, **link: float) -> None:
        """Change a node's link; the fields are those of Link (nodes/router.py). Raises RunError."""

    def check(self) -> None:
        """Raises RunError when there are no links any more."""


class Loopback:
    """Puts all nodes on this machine's loopback, each at an address of its own in a net that a run picks."""

    kind = LOOPBACK

    def __init__(self) -> None:
        self._net = f"127.{secrets.randbelow(200) + 16}"

    def place(self, number: int) -> tuple[str, Sequence[str]]:
        return f"{self._net}.{number // 250}.{number % 250 + 1}", ()

    async def set(self, number: int, **link: float) -> None:
        raise RunError("set_link needs `links = true` in the experiment")

    def check(self) -> None:
        """Do nothing: loopback is always there."""


NO_LINKS = Loopback()


class _Namespaces:
    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Any]) -> None:
        self.kind = KINDS[said["kind"]]
        self._process = process
        self._pid = said["pid"]
        self._namespaces = said["namespaces"]

    def place(self, number: int) -> tuple[str, Sequence[str]]:
        return address(number), ("nsenter", f"--net=/proc/{self._pid}/fd/{self._namespaces[str(number)]}")

    async def set(self, number: int, **link: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"node": number, **link}).encode() + b"\n")
        if not await self._process.stdout.readline():
            await self._process.wait()
            self.check()

    def check(self) -> None:
        if self._process.returncode is not None:
            raise RunError("the process that keeps the links between nodes has ended")


def why_not() -> str | None:
    """Return why there can be no links here, None when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "links between nodes need root on Linux"
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        return f"links between nodes need {' and '.join(missing)}: apt-get install iproute2 util-linux"
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True)  # noqa: S607, PLW1510
    if tried.returncode != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "links between nodes need the right to make network namespaces and TUN devices (CAP_SYS_ADMIN)"
    return None


@asynccontextmanager
async def open_links(nodes: int, seed: int, kind: str | None = None) -> AsyncIterator[_Namespaces]:
    """Open namespaces for so many nodes; without a `kind`, by netem where the kernel has it. Raises UserError."""
    if why := why_not():
        raise UserError(why)
    more = [f"--kind={kind}"] if kind else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunnel_pool.gumby_experiments.nodes.router", str(nodes), f"--seed={seed}", *more,
        f"--with-parent={os.getpid()}", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = await process.stdout.readline()
        if not line:
            said = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
            raise UserError(f"no network namespaces: {said[-1] if said else 'their process has ended'}")
        yield _Namespaces(process, json.loads(line))
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
