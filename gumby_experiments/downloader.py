"""The node that downloads: tunnels, session and pool as `tunnel-pool download` has them, told what to do line by line.

python -m gumby_experiments.downloader --workers N --hops H ...

Takes {"download": {"torrent", "folder", "peers"}}; ends when its stdin does. Says {"circuits"} when it has one, then
twice a second {"done_bytes", "circuits"}, and {"finished"} with the seconds that the download took.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from gumby_experiments.program import run_program
from overlay.config import HostPort
from tunnel_pool.cli import options
from tunnel_pool.client import TorrentClient
from tunnel_pool.torrents import parse_torrent

SAY_S = 0.5


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def report(client: TorrentClient) -> None:
    done = sum(status.done_bytes for status in client.statuses)
    say(done_bytes=done, circuits=len(client.tunnels.find_circuits(hops=client.hops)), restarts=client.restarts)


class Reporter:
    """Says how far it is, but not more often than SAY_S."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, client: TorrentClient) -> None:
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + SAY_S
            report(client)


async def download(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with TorrentClient(options.node_options(arguments), arguments.hops) as client:
        say(started=True)
        await client.wait_first_circuit(lambda client: None)
        say(first_circuit_s=round(client.seconds_to_first_circuit or 0.0, 3), circuits=1)
        reading = asyncio.ensure_future(reader.readline())
        while not reading.done():
            await asyncio.wait([reading], timeout=SAY_S)
            report(client)
        line = reading.result()
        if not line:
            return {"ok": True}
        wanted = json.loads(line)["download"]
        peers = [HostPort(host, port) for host, port in wanted["peers"]]
        begun_s = time.monotonic()
        client.download(parse_torrent(wanted["torrent"]), Path(wanted["folder"]), peers)
        await client.wait_first_circuit(lambda client: None)
        await client.wait_finished(Reporter())
        report(client)
        say(finished=round(time.monotonic() - begun_s, 3), dropped=dict(client.dropped()))
        await reader.read()
    return {"ok": True}


if __name__ == "__main__":
    sys.exit(run_program(__doc__, download))
