"""Starts BitTorrent programs of others on one torrent, whose files are there (it seeds) or not (it downloads)."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

STARTS_WITHIN_S = 30
KNOWN_WITHIN_S = 12  # Transmission takes ten seconds over what is in its watched folder


class Place(NamedTuple):
    """Says where a program works: with `state` and `content` as its folders, at one address and port."""

    state: Path
    content: Path
    torrent: Path
    host: str
    port: int
    requires_encryption: bool


@dataclass(frozen=True)
class Program:
    """A program: how it is started on a torrent, and what tells its version."""

    name: str
    origin: str
    command: Callable[[Place], list]
    version: tuple[str, ...]
    encrypts: bool = True
    seeds: bool = True
    is_alone: bool = False  # whether a second one would hand its torrent to the first
    then: Callable[[Place], list] = lambda place: []  # a command to run once it is up


def version_of(program):
    """Return the version that a program says, None where it is not installed."""
    if shutil.which(program.version[0]) is None:
        return None
    said = subprocess.run(program.version, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)*", said.stdout + said.stderr)
    return found[0] if found else None


@contextlib.asynccontextmanager
async def running(program, place):
    """Run a program from when it listens until the end of the block."""
    place.state.mkdir(parents=True)
    place.content.mkdir(parents=True, exist_ok=True)
    command = [str(word) for word in program.command(place)]
    log = (place.state / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        if then := [str(word) for word in program.then(place)]:
            await _until_it_works(then)
        yield process
    finally:
        log.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until_it_seeds(place, infohash):
    """Wait until the program knows the torrent; who answers encrypted words alone gets the time of others."""
    if place.requires_encryption:
        await asyncio.sleep(KNOWN_WITHIN_S)
        return

    async def answers():
        writer = None
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection(place.host, place.port)
                writer.write(b"\x13BitTorrent protocol" + bytes(8) + infohash + b"-XX0000-" + os.urandom(12))
                return await reader.readexactly(48)
        except (OSError, EOFError, TimeoutError):
            return b""
        finally:
            if writer is not None:
                writer.close()

    async with asyncio.timeout(STARTS_WITHIN_S):
        while not await answers():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _until_it_works(command):
    async with asyncio.timeout(STARTS_WITHIN_S):
        while True:
            quiet = asyncio.subprocess.DEVNULL
            tried = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=quiet, stderr=quiet)
            if await tried.wait() == 0:
                return
            await asyncio.sleep(0.5)


def aria2(place):
    crypto = ["--bt-require-crypto=true", "--bt-min-crypto-level=arc4"] if place.requires_encryption else []
    return [
        "aria2c", f"--dir={place.content}", f"--listen-port={place.port}", "--check-integrity=true", "--seed-ratio=0",
        "--enable-dht=false", "--bt-enable-lpd=false", "--enable-peer-exchange=false", f"--interface={place.host}",
        "--file-allocation=none", "--no-conf", *crypto, place.torrent,
    ]  # fmt: skip


def transmission(place):
    (place.state / "watched").mkdir()
    settings = {
        "bind-address-ipv4": place.host, "dht-enabled": False, "download-dir": str(place.content),
        "encryption": 2 if place.requires_encryption else 0, "lpd-enabled": False, "peer-port": place.port,
        "pex-enabled": False, "port-forwarding-enabled": False, "rpc-enabled": False, "utp-enabled": True,
        "watch-dir": str(place.state / "watched"), "watch-dir-enabled": True,
    }  # fmt: skip
    (place.state / "settings.json").write_text(json.dumps(settings))
    shutil.copy(place.torrent, place.state / "watched")
    return ["transmission-daemon", "-f", "-g", place.state]


def qbittorrent(place):
    config = place.state / "qBittorrent" / "config"
    config.mkdir(parents=True)
    encryption = 1 if place.requires_encryption else 2
    (config / "qBittorrent.conf").write_text(
        "[LegalNotice]\nAccepted=true\n[Preferences]\nWebUI\\Enabled=false\n[BitTorrent]\nSession\\DHTEnabled=false\n"
        f"Session\\LSDEnabled=false\nSession\\PeXEnabled=false\nSession\\Encryption={encryption}\n"
        f"Session\\Port={place.port}\nSession\\InterfaceAddress={place.host}\nSession\\QueueingSystemEnabled=false\n"
        f"Session\\DefaultSavePath={place.content}\nSession\\MultiConnectionsPerIp=true\n"
    )
    return [
        "qbittorrent-nox", f"--profile={place.state}", f"--save-path={place.content}", "--add-paused=false",
        "--skip-dialog=true", place.torrent,
    ]  # fmt: skip


def deluge(place):
    policy = 0 if place.requires_encryption else 2
    core = {
        "dht": False, "lsd": False, "upnp": False, "natpmp": False, "utpex": False, "random_port": False,
        "listen_ports": [place.port, place.port], "listen_interface": place.host, "daemon_port": place.port + 1,
        "download_location": str(place.content), "enc_in_policy": policy, "enc_out_policy": policy, "enc_level": 2,
    }  # fmt: skip
    (place.state / "core.conf").write_text('{"file": 1, "format": 1}' + json.dumps(core))
    return ["deluged", "-d", "-c", place.state, "-p", place.port + 1]


def added_to_deluge(place):
    words = f"connect 127.0.0.1:{place.port + 1}; add -p {place.content} {place.torrent}"
    return ["deluge-console", "-c", place.state, words]


def rtorrent(place):
    wanted = "require,require_RC4,allow_incoming,try_outgoing"
    (place.state / "session").mkdir()
    lines = [
        "system.daemon.set = true", f"session.path.set = {place.state}/session", "dht.mode.set = disable",
        "protocol.pex.set = no", f"directory.default.set = {place.content}",
        f"network.bind_address.set = {place.host}", f"network.port_range.set = {place.port}-{place.port}",
        "network.port_random.set = no", f"protocol.encryption.set = {wanted if place.requires_encryption else 'none'}",
        f"load.start = {place.torrent}",
    ]  # fmt: skip
    (place.state / "rtorrent.rc").write_text("\n".join(lines) + "\n")
    return ["rtorrent", "-n", "-o", f"import={place.state}/rtorrent.rc"]


def rqbit(place):
    return [
        "rqbit", "--disable-dht", "--disable-lsd", "--listen-ip", place.host, "--listen-port", place.port, "download",
        "-o", place.content, "--overwrite", place.torrent,
    ]  # fmt: skip


PROGRAMS = [
    Program("aria2", "Debian", aria2, ("aria2c", "--version")),
    Program("Transmission", "Debian", transmission, ("transmission-daemon", "--version")),
    Program("qBittorrent", "Debian", qbittorrent, ("qbittorrent-nox", "--version"), is_alone=True),
    Program("Deluge", "Debian", deluge, ("deluged", "--version"), then=added_to_deluge),
    Program("rTorrent", "Debian", rtorrent, ("rtorrent", "-h"), seeds=False),
    Program("rqbit", "crates.io", rqbit, ("rqbit", "--version"), encrypts=False),
]
