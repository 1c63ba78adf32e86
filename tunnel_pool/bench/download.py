"""The same file over libtorrent direct and over each contender: throughput, CPU seconds per GB by role."""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

import libtorrent as lt

from tunnel_pool.bench.harness.contenders import Contender
from tunnel_pool.cli.demo import ROLES
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.measure import Meter
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

SEEDERS = EXITS = 2
RELAYS = 2
POLL_S = 0.02
METER_INTERVAL_S = 0.5
RUN_TIMEOUT_S = 600
Result = dict[str, Any]


async def measure(contender: Contender, hops: int, arguments: argparse.Namespace) -> Result:
    """Run one download. Raises UserError when it fails."""
    async with asyncio.timeout(RUN_TIMEOUT_S):
        if contender.engine is not None:
            return await _ours(contender, hops, arguments)
        return await _peers(contender, hops, arguments)


async def _ours(contender: Contender, hops: int, arguments: argparse.Namespace) -> Result:
    assert contender.engine is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunnel_pool", "demo", f"--workers={arguments.workers}", f"--hops={hops}",
        f"--size={arguments.size}", f"--engine={contender.engine.value}", "--json", "--log-level=error",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    report: dict[str, Any] = json.loads(output.splitlines()[-1]) if output else {"ok": False}
    if not report["ok"]:
        raise UserError(f"a run failed: {report.get('error') or errors.decode()[-300:]}")
    return _result(report["mb_per_s"], report["cpu_seconds"], report["bytes"])


def _result(mb_per_s: float, cpu_seconds: dict[str, float], size_bytes: int) -> Result:
    gb = size_bytes / 1e9
    return {"mb_per_s": mb_per_s, "s_per_gb": {role: cpu_seconds.get(role, 0.0) / gb for role in ROLES}}


async def _peers(contender: Contender, hops: int, arguments: argparse.Namespace) -> Result:
    swarm = LocalSwarm(
        arguments.size << 20,
        seeders=SEEDERS,
        exits=EXITS,
        relays=RELAYS if hops > 1 else 0,
        log_level="error",
        node_command=contender.node_command(),
        environment=contender.environment(),
    )
    async with swarm:
        process = await asyncio.create_subprocess_exec(
            *contender.downloader_command(),
            f"--with-parent={os.getpid()}", f"--hops={hops}", f"--listen={swarm.client_host}:0",
            f"--bootstrap={','.join(map(str, swarm.nodes))}", f"--community-id={swarm.community_id.hex()}",
            f"--torrent={swarm.torrent}", f"--save={swarm.download_dir}", f"--state={swarm.state_dir}",
            *(f"--peer={seeder}" for seeder in swarm.seeders),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **contender.environment()},
        )  # fmt: skip
        try:
            return await _watch(process, swarm, arguments.size << 20)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _watch(process: asyncio.subprocess.Process, swarm: LocalSwarm, size_bytes: int) -> Result:
    """Sample everybody from the moment that the circuits stand until the file is there."""
    assert process.stdout is not None
    assert process.stdin is not None
    if not await process.stdout.readline():
        raise UserError("a peer's downloader ended before it had a circuit")
    meter = Meter()
    pids = {"main": [process.pid], **swarm.pids()}
    meter.sample(pids)
    process.stdin.write(b"go\n")
    line = await process.stdout.readline()
    meter.sample(pids)
    if not line:
        raise UserError("a peer's downloader ended before its file was complete")
    process.stdin.write(b"end\n")
    await process.wait()
    if not same_bytes(swarm.file, swarm.download_dir / swarm.file.name):
        raise UserError("a peer's download differs from the file")
    return _result(size_bytes / 1e6 / json.loads(line)["seconds"], meter.cpu_seconds(), size_bytes)


async def measure_direct(arguments: argparse.Namespace) -> Result:
    """Download the same file from the same seeders by uTP, without a tunnel."""
    meter = Meter()
    size_bytes = arguments.size << 20
    async with LocalSwarm(size_bytes, seeders=SEEDERS, exits=0, relays=0, log_level="error") as swarm:
        session = open_session(seeder_settings(swarm.client_host))
        parameters = parse_torrent(str(swarm.torrent))
        parameters.save_path = str(swarm.download_dir)
        parameters.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
        pids = {"main": [os.getpid()], **swarm.pids()}
        meter.sample(pids)
        start_s = next_sample_s = time.monotonic()
        handle = session.add_torrent(parameters)
        for seeder in swarm.seeders:
            handle.connect_peer(seeder)
        while not handle.status().is_seeding:
            if time.monotonic() >= next_sample_s:
                next_sample_s += METER_INTERVAL_S
                meter.sample(pids)
            await asyncio.sleep(POLL_S)
        seconds = time.monotonic() - start_s
        meter.sample(pids)
        handle.flush_cache()
        del handle, session
        if not same_bytes(swarm.file, swarm.download_dir / swarm.file.name):
            raise UserError("libtorrent's own download differs from the file")
    return _result(size_bytes / 1e6 / seconds, meter.cpu_seconds(), size_bytes)
