"""Measures how soon a player has what it seeks, in a file that downloads over one hop meanwhile."""

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness import daemon
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.errors import UserError

SEEKS = 10
READ_BYTES = 10_000_000
CHUNK_BYTES = 1 << 16
SEED = 1  # decides the order of the offsets, the same in each run
OF_2016 = "M. de Vos' thesis of 2016 (evaluation, video player), on Tribler: 11.6 to 115.8 s for 10 MB"


async def measure(size_mb: int, workers: int) -> dict[str, Any]:
    """Measure each offset in a download anew, so that none finds what another has brought. Raises UserError."""
    size_bytes = size_mb << 20
    places = list(range(SEEKS))
    random.Random(SEED).shuffle(places)
    rows = []
    async with LocalSwarm(size_bytes, seeders=2, exits=2, relays=0, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as folder:
            more = [f"--workers={workers}", "--hops=1", *daemon.network_of(swarm)]
            async with daemon.started(Path(folder), more) as client:
                for place in places:
                    infohash = await client.add(source=daemon.magnet_of(swarm))
                    await client.until_begun(infohash)
                    rows.append(await _seek(client, infohash, place * size_bytes // SEEKS, swarm.file))
                    await client.remove(infohash)
    return {"size_mb": size_mb, "seeks": sorted(rows, key=lambda row: row["offset_mb"])}


async def _seek(client: daemon.Client, infohash: str, start: int, file: Path) -> dict[str, Any]:
    """Raises UserError when what comes is not what the file has there."""
    begun_s = time.monotonic()
    first_s, got = 0.0, bytearray()
    headers = {"Range": f"bytes={start}-{start + READ_BYTES - 1}"}
    before = await client.get(f"/api/torrents/{infohash}")
    async with client.http.get(f"{client.base}/stream/{infohash}/0", headers=headers) as response:
        response.raise_for_status()
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            first_s = first_s or time.monotonic() - begun_s
            got += chunk
    all_s = time.monotonic() - begun_s
    with file.open("rb") as whole:
        whole.seek(start)
        if whole.read(READ_BYTES) != got:
            raise UserError("what was streamed is not what is in the file")
    after = await client.get(f"/api/torrents/{infohash}")
    return {
        "offset_mb": start / 1e6,
        "first_byte_s": round(first_s, 3),
        "ten_mb_s": round(all_s, 3),
        "progress_before": round(before["progress"], 3),
        "progress_after": round(after["progress"], 3),
    }


def describe(result: dict[str, Any]) -> str:
    table = Table(title=f"Seeks in a file of {result['size_mb']} MiB that downloads over one hop")
    for column in ("offset MB", "first byte s", "10 MB s", "there before", "there after"):
        table.add_column(column, justify="right")
    for row in result["seeks"]:
        there = f"{row['progress_before']:.0%}", f"{row['progress_after']:.0%}"
        table.add_row(f"{row['offset_mb']:.0f}", f"{row['first_byte_s']:.3f}", f"{row['ten_mb_s']:.3f}", *there)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    return captured.get() + OF_2016
