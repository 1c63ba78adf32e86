"""A private swarm on loopback: seeders, exits and relays, each a process of its own.

Every one has an address of its own in 127.0.0.0/8, so that a seeder's peer
list tells an exit from anything else.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from tunnel_pool.overlay.ground.config import COMMUNITY_ID_BYTES, HostPort
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.program import own_environment, own_executable
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.metainfo import make_torrent

PIECE_BYTES = 1 << 18
CHUNK_BYTES = 1 << 20
END_TIMEOUT_S = 5.0
FOLDER_PREFIX = "tunnel-pool-demo-"
EXIT_NET, RELAY_NET, SEEDER_NET = 1, 2, 3


def make_random_file(
    path: Path,
    size_bytes: int,
    cancelled: threading.Event | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> None:
    """Make a file of random bytes, which nothing on the way can compress or guess. Raises UserError."""
    try:
        with path.open("wb") as file:
            for start in range(0, size_bytes, CHUNK_BYTES):
                if cancelled is not None and cancelled.is_set():
                    return
                file.write(random_bytes(min(CHUNK_BYTES, size_bytes - start)))
    except OSError as error:
        raise UserError(f"cannot make a file of {size_bytes >> 20} MB in {path.parent}: {error.strerror}") from None


def write_torrent(file: Path, torrent: Path, cancelled: threading.Event | None = None) -> None:
    def check(piece: int, pieces: int) -> None:
        if cancelled is not None and cancelled.is_set():
            raise InterruptedError

    torrent.write_bytes(make_torrent(file, check, PIECE_BYTES, hybrid=True))


def same_bytes(first: Path, second: Path) -> bool:
    """Compare the contents of two files; return False when either can't be read."""
    try:
        with first.open("rb") as a, second.open("rb") as b:
            while True:
                chunk = a.read(CHUNK_BYTES)
                if chunk != b.read(CHUNK_BYTES):
                    return False
                if not chunk:
                    return True
    except OSError:
        return False


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def make_folder(prefix: str = FOLDER_PREFIX) -> Path:
    """Make a folder for the time that this process lives; its name says whose it is."""
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def remove_stale_folders(prefix: str = FOLDER_PREFIX) -> None:
    """Remove what demos, or others with such folders, left that were killed before they could clean up."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        pid = folder.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def node_arguments(
    address: HostPort, known: Sequence[HostPort], community_id: bytes, state: Path, workers: int
) -> list[str]:
    """Return the arguments of `tunnel-pool node` in a private swarm; it ends with this process."""
    bootstrap = ",".join(map(str, known)) or "none"
    return [
        f"--workers={workers}",
        f"--listen={address}",
        f"--bootstrap={bootstrap}",
        f"--community-id={community_id.hex()}",
        "--allow-private",
        f"--state={state}",
        f"--with-parent={os.getpid()}",
    ]


def seeder_arguments(torrent: Path, folder: Path, host: str, speed: int) -> list[str]:
    """Return the arguments of `tunnel-pool seeder`; `speed` is in bytes/s, 0 for no limit."""
    return ["seeder", str(torrent), str(folder), host, f"--with-parent={os.getpid()}", f"--speed={speed}"]


class LocalSwarm:
    """Runs the processes of a private swarm inside an `async with`, and holds the folder of the file."""

    def __init__(
        self,
        size_bytes: int,
        *,
        seeders: int,
        exits: int,
        relays: int,
        log_level: str,
        engine: EngineChoice = EngineChoice.AUTO,
        community_id: bytes | None = None,
        more_nodes: tuple[HostPort, ...] = (),
        node_command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        net: str | None = None,
        node_workers: int = 0,
        seeder_speed: int = 0,
    ) -> None:
        """`more_nodes` are in the network, but not of our making. `net`: the first two numbers of all addresses.

        `seeder_speed`: bytes/s that each seeder sends at most, 0 for no limit.

        `node_command` runs in place of `tunnel-pool node` and takes its
        arguments; `environment` is added to that of all processes.
        """
        self._size_bytes = size_bytes
        self._log_level = log_level
        # One swarm's own part of 127.0.0.0/8, so that two demos don't meet.
        net = net or f"127.{secrets.randbelow(200) + 16}"
        self.exits = [HostPort(host := f"{net}.{EXIT_NET}.{i + 1}", free_port(host)) for i in range(exits)]
        self._relays = [HostPort(host := f"{net}.{RELAY_NET}.{i + 1}", free_port(host)) for i in range(relays)]
        self._seeder_hosts = [f"{net}.{SEEDER_NET}.{i + 1}" for i in range(seeders)]
        self.client_host = f"{net}.0.1"
        # A network of its own, too: nobody else's node answers to it.
        self.community_id = community_id or secrets.token_bytes(COMMUNITY_ID_BYTES)
        self._more_nodes = more_nodes
        self._node_workers = node_workers
        self._seeder_speed = seeder_speed
        self.seeders: list[HostPort] = []
        self._processes: dict[str, list[asyncio.subprocess.Process]] = {"exits": [], "relays": [], "seeders": []}
        self._command = own_executable()
        own_node = [*self._command, "node", f"--engine={engine.value}"]
        self._node_command = list(node_command) if node_command else own_node
        self._environment = {**own_environment(), **(environment or {})}

    async def __aenter__(self) -> "LocalSwarm":
        remove_stale_folders()
        self._folder = make_folder()
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def nodes(self) -> tuple[HostPort, ...]:
        """Return the addresses of nodes to start from in this network."""
        return (*self.exits, *self._relays, *self._more_nodes)

    @property
    def file(self) -> Path:
        return self._folder / "seed" / "random.bin"

    @property
    def torrent(self) -> Path:
        return self._folder / "random.torrent"

    @property
    def download_dir(self) -> Path:
        return self._folder / "download"

    @property
    def state_dir(self) -> Path:
        return self._folder / "state"

    def pids(self) -> dict[str, list[int]]:
        return {role: [process.pid for process in processes] for role, processes in self._processes.items()}

    def check(self) -> None:
        """Raises UserError when one of the swarm's processes has ended."""
        for role, processes in self._processes.items():
            for process in processes:
                if process.returncode is not None:
                    raise UserError(f"one of the swarm's {role} ended by itself (exit code {process.returncode})")

    async def replace_node(self, role: str, index: int, number: int) -> None:
        """End an exit or a relay by a signal, and start another with the same key at the same address."""
        process = self._processes[role][index]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await process.wait()
        address, more = (self.exits[index], ["--exit"]) if role == "exits" else (self._relays[index], [])
        self._processes[role][index] = await self._spawn_node(address, *more)

    async def peers_of_seeders(self) -> list[list[str]]:
        """End the seeders; returns the addresses that each saw as peers."""
        reports = []
        for process in self._processes["seeders"]:
            process.stdin.close()  # type: ignore[union-attr]
            output, _ = await asyncio.wait_for(process.communicate(), END_TIMEOUT_S)
            reports.append(json.loads(output.splitlines()[-1])["peers"])
        return reports

    async def _start(self) -> None:
        self.file.parent.mkdir()
        self.download_dir.mkdir()
        await self._in_thread(make_random_file, self.file, self._size_bytes)
        await self._in_thread(write_torrent, self.file, self.torrent)
        for address in self.exits:
            self._processes["exits"].append(await self._spawn_node(address, "--exit"))
        for address in self._relays:
            self._processes["relays"].append(await self._spawn_node(address))
        for host in self._seeder_hosts:
            self._processes["seeders"].append(await self._spawn_seeder(host))
        for host, process in zip(self._seeder_hosts, self._processes["seeders"], strict=True):
            line = await process.stdout.readline()  # type: ignore[union-attr]
            if not line:
                raise UserError("a seeder did not start; see its message above")
            self.seeders.append(HostPort(host, json.loads(line)["port"]))

    async def _in_thread(self, make: Callable[..., None], *arguments: object) -> None:
        """Wait for it in any case, so that nothing is written once the folder is gone."""
        cancelled = threading.Event()
        making = asyncio.ensure_future(asyncio.to_thread(make, *arguments, cancelled))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.gather(making, return_exceptions=True)
            raise

    async def _spawn_node(self, address: HostPort, *more: str) -> asyncio.subprocess.Process:
        others = [node for node in self.nodes if node != address]
        state = self._folder / f"node-{address.host}"
        arguments = node_arguments(address, others, self.community_id, state, self._node_workers)
        return await self._spawn([*self._node_command, *more, *arguments], stdout=asyncio.subprocess.DEVNULL)

    async def _spawn_seeder(self, host: str) -> asyncio.subprocess.Process:
        arguments = seeder_arguments(self.torrent, self.file.parent, host, self._seeder_speed)
        pipe = asyncio.subprocess.PIPE
        return await self._spawn([*self._command, *arguments], stdin=pipe, stdout=pipe)

    async def _spawn(
        self, arguments: list[str], stdout: int, stdin: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        # A session of its own: Ctrl-C is for the demo, which ends the others.
        return await asyncio.create_subprocess_exec(
            *arguments,
            f"--log-level={self._log_level}",
            stdin=stdin,
            stdout=stdout,
            env=self._environment,
            start_new_session=True,
        )

    async def _stop(self) -> None:
        processes = [process for group in self._processes.values() for process in group]
        for process in processes:
            if process.returncode is None:
                process.terminate()
        waits = [asyncio.ensure_future(process.wait()) for process in processes]
        if waits:
            _, late = await asyncio.wait(waits, timeout=END_TIMEOUT_S)
            for process in processes:
                if late and process.returncode is None:
                    process.kill()
            await asyncio.gather(*waits)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
