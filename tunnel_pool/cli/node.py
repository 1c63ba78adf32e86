"""tunnel-pool node: a headless relay, and exit where asked."""

import argparse
import asyncio
import logging
import time
from typing import Any, cast

from overlay.community import PoolTunnelCommunity
from overlay.node import socket_warning
from packet_engine import EngineChoice, choose
from rpc.lifeline import die_with_parent
from rpc.sync import CarriedState
from tunnel_pool.cli import options
from tunnel_pool.contract import Tunnels
from tunnel_pool.errors import UserError
from tunnel_pool.tunnels import open_tunnels, pool_of

REPORT_INTERVAL_S = 60.0
CHECK_INTERVAL_S = 1.0

DESCRIPTION = """Relay circuits for others until told to stop (Ctrl-C or SIGTERM).

With --exit, datagrams also leave from this machine to the internet, in its
name; never to loopback or private addresses unless --allow-private."""

logger = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "node",
        help="relay, and exit where asked, until told to stop",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--exit", action="store_true", help="let BitTorrent and IPv8 datagrams leave from here")
    options.add_workers_option(parser, default="0")
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="info")
    parser.add_argument("--with-parent", type=int, default=None, metavar="PID", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


class _Report:
    """The line a minute."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels
        self._last = tunnels.carried()

    def log(self) -> None:
        now, before = self._tunnels.carried(), self._last
        self._last = now
        logger.info(
            "Carried %.1f MB for others in the last minute (relayed %.1f, exited %.1f); "
            "%d relayed circuits, %d exits, %d nodes known, %d datagrams dropped in all",
            (now.relayed_bytes + now.exited_bytes - before.relayed_bytes - before.exited_bytes) / 1e6,
            (now.relayed_bytes - before.relayed_bytes) / 1e6,
            (now.exited_bytes - before.exited_bytes) / 1e6,
            now.relays,
            now.exits,
            len(self._tunnels.candidates),
            self._tunnels.dropped().total(),
        )


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs until it is stopped; the report is what it carried. Raises UserError."""
    if arguments.with_parent is not None:
        die_with_parent(arguments.with_parent)
    started_s = time.monotonic()
    try:
        tunnels = await open_tunnels(options.node_options(arguments, serves=True, exit_node=arguments.exit))
    except asyncio.CancelledError:
        return _summary(arguments, 0.0, CarriedState(), {})
    report = _Report(tunnels)
    try:
        await _announce(tunnels, arguments)
        while True:
            await _watch_for(REPORT_INTERVAL_S, tunnels)
            report.log()
    except asyncio.CancelledError:
        # Being told to stop is how a node ends well.
        return _summary(arguments, time.monotonic() - started_s, tunnels.carried(), dict(tunnels.dropped()))
    finally:
        await tunnels.unload()


def _summary(
    arguments: argparse.Namespace, seconds: float, carried: CarriedState, dropped: dict[str, int]
) -> dict[str, Any]:
    return {
        "ok": True,
        "seconds": round(seconds, 3),
        "workers": arguments.workers.as_json(),
        "exit": arguments.exit,
        "engine": choose(EngineChoice(arguments.engine)).value,
        "relayed_bytes": carried.relayed_bytes,
        "exited_bytes": carried.exited_bytes,
        "dropped": dropped,
    }


async def _announce(tunnels: Tunnels, arguments: argparse.Namespace) -> None:
    pool = pool_of(tunnels)
    if pool is not None:
        await pool.all_settled()
        addresses = [address for slot in pool.records if (address := pool.listen_address(slot))]
    else:
        plain = cast(PoolTunnelCommunity, tunnels)
        addresses = [plain.endpoint.get_address()]
        if warning := socket_warning(plain):
            logger.warning("%s", warning)
    where = ", ".join(f"{host}:{port}" for host, port in addresses)
    role = "Relay and exit" if arguments.exit else "Relay"
    engine = choose(EngineChoice(arguments.engine)).value
    logger.info("%s on the %s engine, listening on UDP %s", role, engine, where)


async def _watch_for(seconds: float, tunnels: Tunnels) -> None:
    """Sleep, unless the tunnels can't go on. Raises UserError."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if why := tunnels.failure():
            raise UserError(why)
        await asyncio.sleep(CHECK_INTERVAL_S)


def describe(report: dict[str, Any]) -> str:
    return (
        f"stopped after {report['seconds']:.0f} s: relayed {report['relayed_bytes'] / 1e6:.1f} MB, "
        f"exited {report['exited_bytes'] / 1e6:.1f} MB"
    )
