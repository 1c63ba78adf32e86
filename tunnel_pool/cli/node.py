"""tunnel-pool node: a headless relay, and exit where asked."""

import argparse
import asyncio
import datetime
import json
import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.contract import Tunnels
from tunnel_pool.node import policy, status
from tunnel_pool.node.config import PROTOCOL_NAMES, NodeConfig, exit_rules, protocols, read_config
from tunnel_pool.node.keeper import LimitsKeeper
from tunnel_pool.node.rates import are_any
from tunnel_pool.node.server import ask_status, serving
from tunnel_pool.overlay.ground.config import ANY_SOURCE
from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.serving.limits import LimitsMemory
from tunnel_pool.overlay.wire.device import DeviceIsAnotherError, DeviceWatch, index_of
from tunnel_pool.packet_engine import EngineChoice, EngineMissingError, choose
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.lifeline import die_with_parent
from tunnel_pool.system import systemd
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.system.state import state_of_our_own
from tunnel_pool.system.toml_file import arguments_of
from tunnel_pool.tunnels import NO_PROTOCOL, NodeOptions, open_tunnels

REPORT_INTERVAL_S = 60.0
CHECK_INTERVAL_S = 1.0

DESCRIPTION = """Relay circuits for others until told to stop (Ctrl-C or SIGTERM).

With --exit, datagrams also leave from this machine to the internet, in its
name; never to loopback or private addresses unless --allow-private.
`tunnel-pool node status` asks the node that runs with the same --state.

Signals: SIGHUP reads --config again (limits, and what leaves the exit),
SIGUSR1 writes the whole status to the log."""

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what",
        nargs="?",
        choices=["run", "status"],
        default="run",
        help="Run a node, or show the status of one that runs (default: %(default)s).",
    )
    parser.add_argument(
        "--exit",
        nargs="?",
        type=protocols,
        const="all",
        default=NO_PROTOCOL,
        metavar="WHAT",
        help="What leaves from here: all (the same as --exit alone), or some of bittorrent (uTP), dht, udp-trackers, "
        "ipv8, http (requests to trackers), tcp (BitTorrent), https (TLS to port 443) and encrypted-tcp (BitTorrent's "
        "encrypted handshake, which can't be told from anything else, and which all leaves out), with commas between "
        "(default: nothing).",
    )
    parser.add_argument(
        "--backup", action="store_true", help="Be a backup: an exit that others take when no other one answers."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with limits, the exit's policy and these options."
    )
    parser.add_argument(
        "--metrics",
        type=values.peer_address,
        metavar="IP:PORT",
        help="Serve metrics for Prometheus at http://IP:PORT/metrics.",
    )
    options.add_host_name_option(parser, "Prometheus", "localhost, addresses and this machine's name")
    options.add_device_option(parser, "Names are not resolved for others then.")
    parser.add_argument(
        "--exit-from",
        type=values.exit_from,
        default=ANY_SOURCE,
        metavar="IP[:PORT-PORT]",
        help="Address, and ports, from which datagrams leave the exit (default: the address of --listen, any port).",
    )
    parser.add_argument("--show-policy", action="store_true", help="Say what may leave from here, and end.")
    parser.add_argument(
        "--test-destination",
        type=values.destination,
        metavar="IP:PORT",
        help="Say whether datagrams may leave from here to this address, or why not, and end.",
    )
    options.add_workers_option(parser, default="0")
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="info")
    parser.add_argument("--with-parent", type=int, default=None, metavar="PID", help=argparse.SUPPRESS)
    parser.set_defaults(run=run, config_read=NodeConfig())


def with_config(
    arguments: argparse.Namespace, parse: Callable[[list[str]], argparse.Namespace], _: Sequence[str]
) -> argparse.Namespace:
    """Return the options of the file, and over them those of the command line. Raises UserError."""
    if arguments.config is None:
        return arguments
    config = read_config(arguments.config)
    arguments = parse(arguments_of(config.node, "node", arguments.config))
    arguments.config_read = config
    return arguments


def _rules(arguments: argparse.Namespace, config: NodeConfig) -> ExitRules:
    """Raises UserError."""
    folder = arguments.config.parent if arguments.config is not None else Path()
    return exit_rules(config.exit, arguments.exit, folder)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run until stopped, and return a report of what was carried. Raises UserError."""
    if arguments.what == "status":
        return {"ok": True, **await ask_status(arguments.state.absolute())}
    if arguments.backup and not arguments.exit:
        raise UsageError("--backup is for an exit: add --exit")
    rules = _rules(arguments, arguments.config_read)
    if arguments.show_policy:
        return {"ok": True, "policy": policy.describe(rules, arguments.config_read.exit, arguments.allow_private)}
    if arguments.test_destination is not None:
        return _test_destination(arguments, rules)
    if arguments.with_parent is not None:
        die_with_parent(arguments.with_parent)
    return await _serve(arguments, rules)


def _test_destination(arguments: argparse.Namespace, rules: ExitRules) -> dict[str, Any]:
    host, port = arguments.test_destination
    why: str | None
    if not is_allowed_destination(host, port, arguments.allow_private):
        why = DropReason.EXIT_DESTINATION_REFUSED
    else:
        why = rules.destination_refusal(host, port) or _why_unreached(arguments, rules, host)
    verdict = f"no: {policy.REASONS[why]} ({why})" if why else "yes, where the content is let out"
    return {"ok": why is None, "allowed": why is None, "reason": why, "verdict": f"{host} port {port}: {verdict}"}


def _why_unreached(arguments: argparse.Namespace, rules: ExitRules, host: str) -> str | None:
    """Return why nothing that is let out gets to an address, by where it leaves from; nothing is sent."""
    source = ExitSource(arguments.exit_from.host or arguments.listen.host, device=arguments.device or "")
    if not rules.protocols:
        return "exit_not_offered"
    if not source.reaches(host):
        return "exit_from_ipv4"
    return "no_way_to_ipv6" if ":" in host and not source.reaches_ipv6() else None


class _Node:
    """A running node, and what its operator may ask of it."""

    def __init__(self, arguments: argparse.Namespace, rules: ExitRules) -> None:
        config: NodeConfig = arguments.config_read
        self.arguments = arguments
        self.memory = LimitsMemory()
        self.keeper = LimitsKeeper(config.limits, self.memory, arguments.state.absolute(), datetime.datetime.now())
        self.keeper.step(datetime.datetime.now())
        self.options: NodeOptions = replace(
            options.node_options(arguments),
            serves=True,
            exit_protocols=arguments.exit,
            is_backup_exit=arguments.backup,
            exit_rules=rules,
            admission=config.limits.admission(),
            limits=self.memory,
            exit_from=arguments.exit_from,
        )
        self.exits = [name for name, protocol in PROTOCOL_NAMES.items() if protocol in arguments.exit]
        self.engine = _engine(arguments).value
        self.started_s = time.monotonic()
        self.tunnels: Tunnels | None = None  # None while no tunnels are open
        self._in_turn = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()

    def status(self, tunnels: Tunnels) -> dict[str, Any]:
        watched = status.Watched(tunnels, self.memory, self.keeper, self.exits, self.engine, self.started_s)
        return status.status_of(watched)

    def reload(self) -> None:
        """Apply limits and exit rules from the file as it is now; a file with an error changes nothing."""
        systemd.tell_reloading()
        task = asyncio.get_running_loop().create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        async with self._in_turn:
            try:
                # A thread reads it, as databases of networks are large.
                config, rules = await asyncio.to_thread(self._read)
            except UserError as error:
                logger.error("The configuration stays as it was: %s", error)
            else:
                self.keeper.config = config.limits
                self.step(rules)
                logger.info("The configuration was read again")
            finally:
                systemd.tell("READY=1")

    def _read(self) -> tuple[NodeConfig, ExitRules]:
        """Raises UserError."""
        config = read_config(self.arguments.config)
        rules = _rules(self.arguments, config)
        _check_limits(self.arguments, config)
        return config, rules

    def step(self, rules: ExitRules | None = None) -> None:
        """Apply the limits of this hour, what is left of the quota, and these rules; call it every second."""
        self.keeper.step(datetime.datetime.now())
        admission = replace(self.keeper.config.admission(), closed=self.keeper.is_spent)
        holding = self.options.exit_rules if rules is None else rules, admission
        if holding != (self.options.exit_rules, self.options.admission):
            self.options = replace(self.options, exit_rules=holding[0], admission=admission)
            if self.tunnels is not None:
                self.tell(self.tunnels)

    def tell(self, tunnels: Tunnels) -> None:
        """Apply the rules and the admission of now to these tunnels, which are open."""
        tunnels.set_exit_rules(self.options.exit_rules)
        tunnels.set_admission(self.options.admission)

    def carried(self, tunnels: Tunnels) -> tuple[int, int]:
        """Return the bytes relayed, and exited both ways; the Python engine does not count what limits let go."""
        if self.engine == EngineChoice.NATIVE.value:
            counted = self.memory.counted()
            return counted.up["relayed"], counted.up["exited"] + counted.down["exited"]
        carried = tunnels.carried()
        return carried.relayed_bytes, carried.exited_bytes

    def dump(self) -> None:
        if self.tunnels is not None:
            logger.info("Status: %s", json.dumps(self.status(self.tunnels)))


async def _serve(arguments: argparse.Namespace, rules: ExitRules) -> dict[str, Any]:
    _check_limits(arguments, arguments.config_read)
    options.check_device(arguments)
    with state_of_our_own(arguments.state.absolute()):
        return await _serve_until_told(_Node(arguments, rules))


async def _serve_until_told(node: _Node) -> dict[str, Any]:
    """Raises UserError."""
    arguments = node.arguments
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, node.dump)
    if arguments.config is not None:
        loop.add_signal_handler(signal.SIGHUP, node.reload)
    try:
        while True:
            try:
                return await _serve_on_device(node)
            except DeviceIsAnotherError:
                pass
            except UserError:
                if not arguments.device or index_of(arguments.device):
                    raise
            while not index_of(arguments.device):  # noqa: ASYNC110
                await asyncio.sleep(CHECK_INTERVAL_S)
    except asyncio.CancelledError:  # stopped while it began anew
        return _summary(node, (0, 0), {})
    finally:
        systemd.tell("STOPPING=1")
        node.keeper.save()
        node.memory.close()


async def _serve_on_device(node: _Node) -> dict[str, Any]:
    """Serve on a device until the node is stopped. Raises UserError, DeviceIsAnotherError."""
    arguments = node.arguments
    device = DeviceWatch(arguments.device) if arguments.device else None
    opened_with = node.options
    try:
        tunnels = await open_tunnels(opened_with)
    except asyncio.CancelledError:
        return _summary(node, (0, 0), {})
    node.tunnels = tunnels
    if node.options is not opened_with:  # read again meanwhile
        node.tell(tunnels)
    try:
        names = arguments.host_name
        async with serving(lambda: node.status(tunnels), arguments.state.absolute(), arguments.metrics, names):
            await _announce(tunnels, node)
            systemd.tell("READY=1")
            report = _Report(node, tunnels)
            while True:
                await _watch_for(REPORT_INTERVAL_S, tunnels, node, device)
                report.log()
                node.keeper.save()
    except asyncio.CancelledError:
        # Being told to stop is how a node ends well.
        return _summary(node, node.carried(tunnels), dict(tunnels.dropped()))
    finally:
        node.tunnels = None
        await tunnels.unload()


def _check_limits(arguments: argparse.Namespace, config: NodeConfig) -> None:
    """Refuse limits that the chosen engine does not enforce. Raises UserError."""
    if are_any(config.limits) and _engine(arguments) is not EngineChoice.NATIVE:
        raise UserError(
            "limits need the native packet engine: install Rust (https://rustup.rs) and run pip install again, "
            "or take [limits] out of the configuration"
        )


def _engine(arguments: argparse.Namespace) -> EngineChoice:
    """Raises UserError."""
    try:
        return choose(EngineChoice(arguments.engine))
    except EngineMissingError as error:
        raise UserError(str(error)) from None


class _Report:
    """Writes a line a minute of what was carried."""

    def __init__(self, node: _Node, tunnels: Tunnels) -> None:
        self._node, self._tunnels = node, tunnels
        self._last = node.carried(tunnels)

    def log(self) -> None:
        now, before = self._node.carried(self._tunnels), self._last
        self._last = now
        relayed, exited = now[0] - before[0], now[1] - before[1]
        routes = self._tunnels.carried()
        logger.info(
            "Carried %.1f MB for others in the last minute (relayed %.1f, exited %.1f); "
            "%d relayed circuits, %d exits, %d nodes known, %d datagrams dropped in all",
            (relayed + exited) / 1e6,
            relayed / 1e6,
            exited / 1e6,
            routes.relays,
            routes.exits,
            len(self._tunnels.candidates),
            self._tunnels.dropped().total(),
        )


def _summary(node: _Node, carried: tuple[int, int], dropped: dict[str, int]) -> dict[str, Any]:
    return {
        "ok": True,
        "seconds": round(time.monotonic() - node.started_s, 3),
        "workers": node.arguments.workers.as_json(),
        "exit": node.exits,
        "engine": node.engine,
        "relayed_bytes": carried[0],
        "exited_bytes": carried[1],
        "dropped": dropped,
    }


async def _announce(tunnels: Tunnels, node: _Node) -> None:
    if tunnels.pool is not None:
        await tunnels.pool.all_settled()
    where = ", ".join(f"{host}:{port}" for host, port in tunnels.listening())
    role = "Relay and exit" if node.exits else "Relay"
    logger.info("%s on the %s engine, listening on UDP %s", role, node.engine, where)


async def _watch_for(seconds: float, tunnels: Tunnels, node: _Node, device: DeviceWatch | None) -> None:
    """Keep the limits up to date and the device in sight, unless the tunnels can't go on. Raises UserError."""
    until_s = time.monotonic() + seconds
    watchdog_s = systemd.watchdog_interval_s()
    while time.monotonic() < until_s:
        if why := tunnels.failure():
            raise UserError(why)
        node.step()
        if device is not None:
            device.look()
        if watchdog_s is not None:
            systemd.tell("WATCHDOG=1")
        await asyncio.sleep(min(CHECK_INTERVAL_S, watchdog_s or CHECK_INTERVAL_S))


def describe(report: dict[str, Any]) -> str:
    for name in ("policy", "verdict"):
        if name in report:
            return str(report[name])
    if "uptime_s" in report:
        return status.describe(report)
    return (
        f"stopped after {report['seconds']:.0f} s: relayed {report['relayed_bytes'] / 1e6:.1f} MB, "
        f"exited {report['exited_bytes'] / 1e6:.1f} MB"
    )
