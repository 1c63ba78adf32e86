"""Recording a profile: a program is run twice under tunnel_pool/cut/meter.py, for its flows and for its CPU."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tunnel_pool import __version__
from tunnel_pool.cut.graph import Profile
from tunnel_pool.cut.meter import CPU, FLOW
from tunnel_pool.pool.program import own_environment
from tunnel_pool.system.errors import UserError

END_TIMEOUT_S = 20.0


async def record(components: Path, program: Sequence[str]) -> Profile:
    """`program`: -m MODULE or a script, with its arguments. Raises UserError when it fails."""
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (FLOW, CPU):
            out = Path(folder) / kind
            print(f"running {' '.join(program)} for its {kind}", file=sys.stderr, flush=True)
            await _run(kind, components, out, program)
            if not out.exists():
                raise UserError("the program ended before it could be measured: it must not call os._exit")
            measured[kind] = json.loads(out.read_text())
    return msgspec.convert(
        {
            "flow_seconds": measured[FLOW]["seconds"],
            "flows": measured[FLOW]["flows"],
            "cpu_seconds": measured[CPU]["cpu_seconds"],
            "origin": {"program": list(program), "python": sys.version.split()[0], "version": __version__},
        },
        Profile,
    )


async def _run(kind: str, components: Path, out: Path, program: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunnel_pool.cut.meter", kind, str(components), str(out), *program,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **own_environment()}, start_new_session=True,
    )  # fmt: skip
    try:
        _, said = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), END_TIMEOUT_S)
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        raise UserError(f"the program failed: {lines[-1] if lines else f'exit code {process.returncode}'}")


def read_profile(path: Path) -> Profile:
    """Raises UserError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no profile: {error}") from None


def write_profile(profile: Profile, path: Path) -> None:
    """Raises UserError."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
