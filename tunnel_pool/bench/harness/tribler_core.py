"""Tribler's core as a process, asked by REST as its page would ask; in a network that reaches nobody."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tunnel_pool.exit_cache import pack_exits
from tunnel_pool.pool.program import own_environment
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.errors import UserError

KEY = "secret"
PORT = 20_194  # below the range that the kernel takes ports from by itself
HOST, TUNNELS_HOST = "127.9.9.8", "127.9.9.9"
READY_WITHIN_S = 60.0
ENDS_WITHIN_S = 30.0
POLL_S = 0.1
OURS = (f"--listen={TUNNELS_HOST}:0", "--bootstrap=none", "--allow-private")

Known = Mapping[str, Any]


def check_source(source: Path) -> None:
    """Raises UserError where there is no Tribler."""
    if not (source / "src" / "run_tribler.py").exists():
        raise UserError(f"no Tribler in {source}: there is no src/run_tribler.py")


async def default_configuration(python: str, source: Path, folder: Path) -> dict[str, Any]:
    """Return what Tribler would begin with, changed so far that it disturbs nobody and waits for nobody.

    Raises UserError when that Python lacks what Tribler needs.
    """
    code = "import json; from tribler.tribler_config import DEFAULT_CONFIG; print(json.dumps(DEFAULT_CONFIG))"
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(python, "-c", code, env=environment, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    try:
        config: dict[str, Any] = json.loads(output)
    except ValueError:
        told = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise UserError(f"{python} can't run Tribler: {told[-1]}") from None
    config["state_dir"] = config["ipv8"]["working_directory"] = str(folder)
    for key in config["ipv8"]["keys"]:
        if "file" in key:
            key["file"] = str(folder / Path(key["file"]).name)
    config["ipv8"]["interfaces"] = [{"interface": "UDPIPv4", "ip": HOST, "port": 8090}]
    config["api"].update(http_port=PORT, key=KEY)
    config["versioning"]["enabled"] = config["rss"]["enabled"] = False
    # There is no DHT of BitTorrent here, which it would wait for before it adds a torrent.
    config["libtorrent"]["dht_readiness_timeout"] = 0
    config["libtorrent"]["download_defaults"]["saveas"] = str(folder / "downloads")
    return config


async def prepare(python: str, source: Path, state: Path, swarm: LocalSwarm) -> None:
    """Write the configuration of a Tribler that knows the swarm's nodes by its exit cache. Raises UserError."""
    (state / "git").mkdir(parents=True)
    config = await default_configuration(python, source, state)
    (state / "git" / "configuration.json").write_text(json.dumps(config))
    (state / "git" / "exitnode_cache.dat").write_bytes(pack_exits(swarm.nodes))


def command_line(python: str, source: Path, workers: int, log_level: str = "WARNING") -> list[str]:
    """Return how to start it headless: with our tunnels over so many workers, or with its own at 0."""
    ours = ["-m", "tunnel_pool.tribler", f"--workers={workers}", *OURS]
    return [python, *(ours if workers else [str(source / "src" / "run_tribler.py")]), "-s", "--log-level", log_level]


def environment_of(source: Path, state: Path, ours: bool = True) -> dict[str, str]:
    """Return the variables by which Tribler and, if wanted, we are found, and where its state is."""
    paths = [str(source / "src"), *([own_environment()["PYTHONPATH"]] if ours else [])]
    return {"TSTATEDIR": str(state), "PYTHONPATH": os.pathsep.join(paths)}


class Tribler:
    """A running Tribler, asked by REST."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, method: str, path: str, **body: Any) -> Any:
        """Return what it answers, JSON or text. Raises UserError when it refuses."""
        async with self._session.request(method, f"http://127.0.0.1:{PORT}/api/{path}", json=body or None) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise UserError(f"Tribler answers {answer.status} to {method} {path}: {text[:200]}")
            return json.loads(text) if text.startswith(("{", "[")) else text

    async def until_ready(self, check: Callable[[], None], holds: Callable[[], bool] = lambda: True) -> None:
        """Wait until it answers and this holds; `check` raises when it never will."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while True:
            with contextlib.suppress(aiohttp.ClientError, UserError):
                await self.ask("GET", "downloads")
                if holds():
                    return
            check()
            if time.monotonic() > deadline_s:
                raise UserError(f"Tribler did not start in {READY_WITHIN_S:.0f} s")
            await asyncio.sleep(POLL_S)

    async def add(self, uri: str, saved: Path, hops: int) -> str:
        """Return the infohash that it knows the torrent by."""
        more = {"anon_hops": hops, "safe_seeding": True, "destination": str(saved)}
        return str((await self.ask("PUT", "downloads", uri=uri, **more))["infohash"])

    async def downloads(self) -> dict[str, Known]:
        """Return what it says of each torrent, by infohash."""
        return {known["infohash"]: known for known in (await self.ask("GET", "downloads"))["downloads"]}

    async def until(self, infohash: str, holds: Callable[[Known], bool], timeout_s: float) -> Known:
        """Return what Tribler says of the torrent, once it `holds` or the time is over."""
        deadline_s, known = time.monotonic() + timeout_s, dict[str, Any]()
        while not holds(known) and time.monotonic() < deadline_s:
            await asyncio.sleep(POLL_S)
            known = dict((await self.downloads()).get(infohash, {}))
        return known

    async def until_done(self, infohash: str, timeout_s: float) -> Known:
        return await self.until(infohash, lambda known: known.get("progress") == 1, timeout_s)

    async def circuits(self) -> Sequence[Known]:
        circuits: list[Known] = (await self.ask("GET", "ipv8/tunnel/circuits"))["circuits"]
        return circuits


@contextlib.asynccontextmanager
async def asked() -> AsyncIterator[Tribler]:
    """Yield a client of a Tribler that runs, or is starting."""
    async with aiohttp.ClientSession(headers={"X-Api-Key": KEY}) as session:
        yield Tribler(session)
