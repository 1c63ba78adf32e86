"""Makes the state folders in `fixtures/` by Debian's transmission-daemon, qbittorrent-nox, deluged and rtorrent.

And by Tribler 8.4.3 (tests/worlds/real_tribler.py) and rqbit 9.1.0 (`cargo install rqbit`).

Run it by hand, as root, where these are installed: `mkdir /fixture; unshare -n .venv/bin/python -m
tests.tunnel_pool.importing.make_fixtures`. The namespace keeps them from the network. Each is given three torrents:

- `whole`: a folder of two files, both there, running, in a category or with a label.
- `half`: one file, of which the first half is there, stopped, with limits of its own.
- `picked`: a folder of two files, one of which is not wanted and not there.
"""

import asyncio
import contextlib
import json
import random
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import libtorrent as lt
from qbittorrentapi import Client

from tests.worlds import real_tribler
from tests.worlds.commands import command
from tunnel_pool.bench.harness import tribler_core
from tunnel_pool.torrent.metainfo import new_creator

PLACE = Path("/fixture")  # where downloads are, by what the programs keep
FIXTURES = Path(__file__).parent / "fixtures"
PIECE_BYTES = 16384
FILES = {
    "whole": {"a.bin": 40_000, "sub/b.bin": 70_000},
    "half": {"": 20 * PIECE_BYTES},
    "picked": {"p.bin": 3 * PIECE_BYTES, "q.bin": 50_000},
}
UNWANTED = "picked", "p.bin"  # the second, as libtorrent sorts them
WAIT_S = 3.0
# The files that are read; of the others, some hold keys.
KEPT = re.compile(
    r"\.torrent|resume$|^torrents\.state$|^categories\.json$|^[0-9a-f]{40}\.conf$|\.bitv$|^session\.json$"
)


def content(name, path, size):
    return random.Random(f"{name}/{path}").randbytes(size)


def write_whole(folder):
    """Write all files whole."""
    for name, files in FILES.items():
        for path, size in files.items():
            place = folder / name / path if path else folder / f"{name}.bin"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content(name, path, size))


def write_as_left(folder):
    """Write the files as the programs had them."""
    write_whole(folder)
    half = folder / "half.bin"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2].ljust(half.stat().st_size, b"\0"))
    folder.joinpath(*UNWANTED).unlink()


def torrents(folder):
    """Write the torrent files of what lies whole in a folder."""
    for name in FILES:
        source = folder / name if (folder / name).exists() else folder / f"{name}.bin"
        creator = new_creator(source, PIECE_BYTES)
        creator.add_tracker("http://127.0.0.1:9/announce")
        creator.set_creation_date(1_700_000_000)
        lt.set_piece_hashes(creator, str(folder))
        (folder / f"{name}.torrent").write_bytes(lt.bencode(creator.generate()))


@contextlib.contextmanager
def running(*command, stop=None):
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(WAIT_S)
        yield
    finally:
        if stop is not None:
            stop()
        else:
            process.terminate()
        process.wait(30)


def run(*command):
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def transmission(state, sources, downloads):
    settings = {
        "dht-enabled": False, "download-dir": str(downloads), "lpd-enabled": False, "pex-enabled": False,
        "port-forwarding-enabled": False, "rpc-port": 9191, "start-added-torrents": False, "utp-enabled": False,
    }  # fmt: skip
    state.mkdir()
    (state / "settings.json").write_text(json.dumps(settings))

    def remote(*words):
        run("transmission-remote", "9191", *words)

    with running("transmission-daemon", "-f", "-g", state, stop=lambda: remote("--exit")):
        for name in FILES:
            remote("-a", sources / f"{name}.torrent")
        remote("-t", 3, "-G", 1)
        remote("-t", "all", "-v")
        time.sleep(WAIT_S)
        remote("-t", 1, "-L", "films,seen")
        remote("-t", 2, "-d", 100, "-sr", "1.5", "-Bh")
        remote("-t", 1, "-s")
        time.sleep(WAIT_S)


def qbittorrent(state, sources, downloads):
    config = state / "qBittorrent" / "config"
    config.mkdir(parents=True)
    (config / "qBittorrent.conf").write_text(
        f"[LegalNotice]\nAccepted=true\n[Preferences]\nWebUI\\LocalHostAuth=false\n"
        f"[BitTorrent]\nSession\\DefaultSavePath={downloads}\nSession\\DHTEnabled=false\nSession\\LSDEnabled=false\n"
        "Session\\PeXEnabled=false\n"
    )
    client = Client(host="http://127.0.0.1:8181", FORCE_SCHEME_FROM_HOST=True)
    with running("qbittorrent-nox", f"--profile={state}", "--webui-port=8181", stop=client.app_shutdown):
        client.torrents_create_category("films", save_path=str(downloads))
        for name in FILES:
            client.torrents_add(
                torrent_files=(sources / f"{name}.torrent").read_bytes(),
                is_paused=True,
                category="films" if name == "whole" else None,
                tags="seen,hd" if name == "whole" else None,
            )
        time.sleep(WAIT_S)
        hashes = {row.name: row.hash for row in client.torrents_info()}
        client.torrents_file_priority(hashes["picked"], file_ids=[1], priority=0)
        client.torrents_recheck("all")
        time.sleep(WAIT_S)
        client.torrents_set_share_limits(ratio_limit=1.5, seeding_time_limit=60, torrent_hashes=hashes["half.bin"])
        client.torrents_set_download_limit(100_000, torrent_hashes=hashes["half.bin"])
        client.torrents_rename(hashes["half.bin"], "Half of it")
        client.torrents_resume([hashes["whole"], hashes["picked"]])
        time.sleep(WAIT_S)


def deluge(state, sources, downloads):
    state.mkdir()
    core = {
        "dht": False,
        "lsd": False,
        "upnp": False,
        "natpmp": False,
        "utpex": False,
        "download_location": str(downloads),
        "daemon_port": 58999,
    }
    (state / "core.conf").write_text('{"file": 1, "format": 1}' + json.dumps(core))

    def console(*words):
        run("deluge-console", "-c", state, " ".join(map(str, words)))

    with running("deluged", "-d", "-c", state, "-p", 58999, stop=lambda: console("connect 127.0.0.1:58999; halt")):
        for name in FILES:
            console(f"connect 127.0.0.1:58999; add -p {downloads} {sources / name}.torrent")
        time.sleep(WAIT_S)
        console("connect 127.0.0.1:58999; recheck *")
        time.sleep(WAIT_S)
        half = str(lt.load_torrent_file(str(sources / "half.torrent")).info_hashes.v1)
        console(f"connect 127.0.0.1:58999; manage {half} --set max_download_speed 100")
        console(f"connect 127.0.0.1:58999; pause {half}")
        time.sleep(WAIT_S)


def rtorrent(state, sources, downloads):
    state.mkdir()
    lines = [
        "system.daemon.set = true",
        f"session.path.set = {state}",
        "dht.mode.set = disable",
        "protocol.pex.set = no",
        f"directory.default.set = {downloads}",
        "trackers.use_udp.set = no",
        f'load.start = {sources}/whole.torrent,"d.custom1.set=films"',
        f"load.start = {sources}/half.torrent",
        f"load.start = {sources}/picked.torrent",
        "schedule2 = save, 4, 2, ((session.save))",
    ]
    (state / "rtorrent.rc").write_text("\n".join(lines) + "\n")
    with running("rtorrent", "-n", "-o", f"import={state}/rtorrent.rc"):
        time.sleep(3 * WAIT_S)


def rqbit(state, sources, downloads):
    state.mkdir()
    address = "127.0.0.1:3131"
    options = ["--disable-dht", "--disable-upnp-port-forward", "--http-api-listen-addr", address, "server", "start"]

    def post(path, data=b""):
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data=data)) as answer:
            return json.load(answer)

    with running("rqbit", *options, "--persistence-location", state, "--fastresume", downloads):
        for name in FILES:
            only = "&only_files=0" if name == "picked" else ""
            added = post(f"/torrents?overwrite=true{only}", (sources / f"{name}.torrent").read_bytes())
            if name == "half":
                half = added["id"]
        time.sleep(WAIT_S)
        post(f"/torrents/{half}/pause")
        time.sleep(WAIT_S)


def tribler(state, sources, downloads):
    """Run the real Tribler's core (tests/worlds/real_tribler.py), with its own tunnels."""
    asyncio.run(_tribler(state, sources, downloads))


async def _tribler(state, sources, downloads):
    python, source = str(real_tribler.python()), real_tribler.source()
    (state / "git").mkdir(parents=True)
    config = await tribler_core.default_configuration(python, source, state)
    (state / "git" / "configuration.json").write_text(json.dumps(config))
    environment = tribler_core.environment_of(source, state, ours=False)
    program = tribler_core.command_line(python, source, 0)
    async with command(program=program, environment=environment) as process, tribler_core.asked() as tribler:
        await tribler.until_ready(lambda: None)
        for name in FILES:
            path = sources / f"{name}.torrent"
            wish = {"selected_files": [0]} if name == "picked" else {}
            # Over hops it would wait for circuits, and check nothing: these come once all is checked.
            await tribler.ask("PUT", "downloads", uri=path.as_uri(), destination=str(downloads), anon_hops=0, **wish)
        await asyncio.sleep(2 * WAIT_S)
        hashes = {name: str(lt.load_torrent_file(str(sources / f"{name}.torrent")).info_hashes.v1) for name in FILES}
        await tribler.ask("PATCH", f"downloads/{hashes['half']}", download_limit=100_000)
        await tribler.ask("PATCH", f"downloads/{hashes['half']}", seeding_ratio=1.5)
        await tribler.ask("PATCH", f"downloads/{hashes['half']}", state="stop")
        await asyncio.sleep(WAIT_S)
        await tribler.ask("PATCH", f"downloads/{hashes['whole']}", anon_hops=2)
        await asyncio.sleep(2 * WAIT_S)
        process.process.terminate()
        await process.process.stdout.read()
        await process.process.wait()


def make():
    run("ip", "link", "set", "lo", "up")
    sources = PLACE / "sources"
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for program in (transmission, qbittorrent, deluge, rtorrent, rqbit, tribler):
        for folder in (sources, PLACE / "dl", PLACE / "state"):
            shutil.rmtree(folder, ignore_errors=True)
        write_whole(sources)
        torrents(sources)
        write_as_left(PLACE / "dl")
        program(PLACE / "state", sources, PLACE / "dl")
        for path in (PLACE / "state").rglob("*"):
            if path.is_file() and KEPT.search(path.name):
                kept = FIXTURES / program.__name__ / path.relative_to(PLACE / "state")
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)


if __name__ == "__main__":
    make()
