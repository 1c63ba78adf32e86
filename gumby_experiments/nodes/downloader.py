"""The node that downloads: tunnels, session and pool as `tunnel-pool download` has them, told what to do line by line.

python -m tunnel_pool.gumby_experiments.nodes.downloader --workers N --hops H ...

Takes {"download": {"torrent", "folder", "peers"}}; ends when its stdin does. Says {"circuits"} when it has one, then
twice a second; in the end {"finished", "progress"}: the seconds that the download took, and the points of
gumby_experiments/nodes/progress.py.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import options
from tunnel_pool.gumby_experiments.nodes.program import run_program
from tunnel_pool.gumby_experiments.nodes.progress import Progress
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.metainfo import parse_torrent

SAY_S = 0.5


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def wait_for_line(reader: asyncio.StreamReader, client: TorrentClient) -> bytes:
    """Wait for a line of the reader, and say meanwhile how many circuits there are."""
    reading = asyncio.ensure_future(reader.readline())
    while not reading.done():
        await asyncio.wait([reading], timeout=SAY_S)
        say(circuits=len(client.circuits()))
    return reading.result()


async def carry_out(client: TorrentClient, torrent: str, folder: str, peers: list[tuple[str, int]]) -> None:
    """Carry out one download. Raises UserError."""
    progress = Progress()
    begun_s = time.monotonic()

    def see(client: TorrentClient) -> None:
        progress.add(time.monotonic() - begun_s, sum(status.done_bytes for status in client.statuses))

    client.download(parse_torrent(torrent), Path(folder), [HostPort(host, port) for host, port in peers])
    await client.wait_circuits(lambda client: None)
    await client.wait_finished(see)
    see(client)
    say(finished=round(time.monotonic() - begun_s, 3), progress=progress.points)


async def download(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with TorrentClient(options.node_options(arguments), arguments.hops, isolation=Isolation.NONE) as client:
        say(started=True)
        await client.wait_circuits(lambda client: None)
        say(first_circuit_s=round(client.seconds_to_first_circuit or 0.0, 3), circuits=1)
        if line := await wait_for_line(reader, client):
            await carry_out(client, **json.loads(line)["download"])
            await reader.read()
    return {"ok": True}


if __name__ == "__main__":
    sys.exit(run_program(__doc__, download))
