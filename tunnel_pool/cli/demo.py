"""tunnel-pool demo: a private swarm on loopback, and a download through it."""

import argparse
import os
import sys
import time
from contextlib import suppress
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.progress import ProgressDisplay
from tunnel_pool.cli.report import run_report
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.system.errors import UsageError
from tunnel_pool.system.measure import Meter
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import NodeOptions

METER_INTERVAL_S = 0.5
ROLES = ("main", "workers", "exits", "relays", "seeders")

DESCRIPTION = """Download a random file through onion-routed circuits on this machine alone.

Starts seeders (libtorrent), exits and relays (tunnel-pool node), each its own
process on its own loopback address, then downloads through them and compares
the file byte for byte. Leaves nothing behind."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_workers_option(parser, default="2")
    options.add_hops_option(parser)
    number = values.whole_number
    parser.add_argument(
        "--size",
        type=number(1, 1 << 20),
        default=100,
        metavar="MB",
        help="Size of the file in MiB (default: %(default)s).",
    )
    parser.add_argument(
        "--seeders", type=number(1, 64), default=2, metavar="S", help="Number of seeders (default: %(default)s)."
    )
    parser.add_argument(
        "--exits", type=number(1, 64), default=2, metavar="E", help="Number of exits (default: %(default)s)."
    )
    parser.add_argument(
        "--relays",
        type=number(0, 64),
        default=None,
        metavar="R",
        help="Number of relays (default: 2, none with one hop).",
    )
    parser.add_argument(
        "--seeder-speed", type=number(0, 2_000), default=0, metavar="MB",
        help="MB/s that each seeder sends at most, which leaves time to look at the download (default: no limit).",
    )  # fmt: skip
    options.add_network_options(parser, private_swarm=True)
    options.add_output_options(parser)
    parser.set_defaults(run=run, lockdown=LockdownMode.AUTO.value)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the demo's report. Raises UserError."""
    relays = arguments.relays if arguments.relays is not None else (0 if arguments.hops == 1 else 2)
    if relays + arguments.exits < arguments.hops:
        raise UsageError(f"{arguments.hops} hops need as many nodes: raise --relays or --exits")
    from_default, more_nodes = arguments.bootstrap
    if from_default:
        raise UsageError("the demo stays on this machine: --bootstrap default is for download and node")
    options.check_ports(arguments)
    print(f"making a random file of {arguments.size} MiB and starting the swarm", file=sys.stderr, flush=True)
    swarm = LocalSwarm(
        arguments.size << 20,
        seeders=arguments.seeders,
        exits=arguments.exits,
        relays=relays,
        log_level=arguments.log_level,
        engine=EngineChoice(arguments.engine),
        community_id=arguments.community_id,
        more_nodes=more_nodes,
        seeder_speed=arguments.seeder_speed * 1_000_000,
    )
    async with swarm:
        return await _download(arguments, swarm)


async def _download(arguments: argparse.Namespace, swarm: LocalSwarm) -> dict[str, Any]:
    node = NodeOptions(
        workers=arguments.workers,
        state_dir=arguments.state.absolute() if arguments.state else swarm.state_dir,
        listen=arguments.listen or HostPort(swarm.client_host, 0),
        bootstrap=swarm.nodes,
        community_id=swarm.community_id,
        circuits=arguments.circuits,
        engine=EngineChoice(arguments.engine),
        steering=arguments.steering == "auto",
        start_method=StartMethod(arguments.start_method),
    )
    meter = Meter()
    async with TorrentClient(node, arguments.hops) as client:

        def pids() -> dict[str, list[int]]:
            return {"main": [os.getpid()], "workers": list(client.pool_pids.values()), **swarm.pids()}

        next_sample_s = 0.0

        def watch(client: TorrentClient) -> None:
            swarm.check()
            display(client)

        def on_progress(client: TorrentClient) -> None:
            nonlocal next_sample_s
            if time.monotonic() >= next_sample_s:
                next_sample_s = time.monotonic() + METER_INTERVAL_S
                meter.sample(pids())
            watch(client)

        with ProgressDisplay(pids) as display:
            client.download(parse_torrent(str(swarm.torrent)), swarm.download_dir, swarm.seeders)
            await client.wait_circuits(watch)
            meter.sample(pids())
            start_s = time.monotonic()
            await client.wait_finished(on_progress)
            seconds = time.monotonic() - start_s
        meter.sample(pids())
        await client.tunnels.update_statistics()
        only_exits = _saw_only(await swarm.peers_of_seeders(), {address.host for address in swarm.exits})
        report = run_report(client, meter)
    # libtorrent says that a torrent is complete before all of it is written; once it has ended, all is.
    verified = same_bytes(swarm.file, swarm.download_dir / swarm.file.name)
    size_bytes = arguments.size << 20
    cpu = meter.cpu_seconds()
    return {
        "ok": verified and only_exits,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "mb_per_s": round(size_bytes / 1e6 / seconds, 2),
        "verified": verified,
        "seeders_saw_only_exits": only_exits,
        "cpu_seconds": {role: cpu.get(role, 0.0) for role in ROLES},
        **report,
    }


def _saw_only(seen_by_seeders: list[list[str]], exits: set[str]) -> bool:
    """Return whether some seeder saw some exit and none saw anybody else: a check that saw nobody is no check."""
    seen = {host for peers in seen_by_seeders for host in peers}
    return bool(seen) and seen <= exits


def describe(report: dict[str, Any]) -> str:
    """Return the report for people."""
    cpu = "  ".join(f"{role} {seconds:.1f}" for role, seconds in report["cpu_seconds"].items())
    children = sorted({str(c["child"]) for c in report["circuits"] if c["child"] is not None})
    with suppress(ValueError):
        children.sort(key=int)
    carried_by = f"children {', '.join(children)}" if children else "the main process"
    return "\n".join(
        [
            f"{report['bytes'] / 1e6:.1f} MB in {report['seconds']:.1f} s: {report['mb_per_s']:.1f} MB/s "
            f"over {report['hops']} hop(s) on the {report['engine']} engine, "
            f"{len(report['circuits'])} circuits carried by {carried_by}",
            f"file is the same byte for byte: {'yes' if report['verified'] else 'NO'}",
            f"seeders saw only exits as peers: {'yes' if report['seeders_saw_only_exits'] else 'NO'}",
            f"first circuit after {report['seconds_to_first_circuit']:.1f} s, "
            f"{report['worker_restarts']} worker restarts",
            f"CPU seconds: {cpu}",
        ]
    )
