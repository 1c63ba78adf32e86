"""The options that several commands have, each once: its name, type, default and help."""

import argparse
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import values
from tunnel_pool.overlay.ground.config import MAX_HOPS, TRIBLER_COMMUNITY_ID, HostPort
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER, OWN_CIRCUITS
from tunnel_pool.overlay.paths.guards import FIRST_LAYER
from tunnel_pool.overlay.wire.device import index_of
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.system.errors import UsageError
from tunnel_pool.torrent.isolation import MOST_LANES, Isolation
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import ANYWHERE, NodeOptions, shares_port

CLIENTS = ("download", "daemon")  # commands whose node has a new key after each start
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_output_options(parser: argparse.ArgumentParser, log_level: str = "warning") -> None:
    parser.add_argument(
        "--json", action="store_true", help="Print the result as one JSON object, on the last line of stdout."
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=log_level,
        help="Log what is at least this severe (default: %(default)s).",
    )


def add_workers_option(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--workers",
        type=values.workers,
        default=default,
        metavar="N",
        help="Number of child processes that carry circuits. MIN..MAX keeps as many as there is work for, auto is 1 to "
        "the number of physical cores, and 0 runs everything in one process (default: %(default)s).",
    )
    parser.add_argument(
        "--start-method",
        choices=[method.value for method in StartMethod],
        default=StartMethod.SPAWN.value,
        help="How workers are started: spawn starts a new process for each; forkserver forks them from one that has "
        "everything loaded, which saves memory (Linux; default: %(default)s).",
    )
    parser.add_argument(
        "--steering",
        choices=["auto", "off"],
        default="auto",
        help="With auto, on Linux, workers share one UDP port, and the kernel hands each worker its datagrams, those "
        "of the network and those of libtorrent. With off, each worker has a port of its own, and the main process "
        "passes libtorrent's datagrams on (default: %(default)s).",
    )


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=[choice.value for choice in EngineChoice],
        default=EngineChoice.AUTO.value,
        help="Packet path: native (Rust), python, or auto, which is native where it is built (default: %(default)s).",
    )


def add_hops_option(parser: argparse.ArgumentParser, exits: bool = True) -> None:
    """Add `--hops`; without `exits`, no circuit is kept for what leaves the network."""
    parser.add_argument(
        "--hops",
        type=values.whole_number(1, MAX_HOPS),
        default=1,
        metavar="H",
        help="Number of hops of a circuit, 1 to 3 (default: %(default)s).",
    )
    if exits:
        add_circuits_option(parser)


def add_peer_option(parser: argparse.ArgumentParser, way: str) -> None:
    """Add --peer; `way` says how the peer is asked."""
    parser.add_argument(
        "--peer",
        type=values.peer_address,
        action="append",
        default=[],
        metavar="IP:PORT",
        help=f"A BitTorrent peer to ask, {way}. May be repeated.",
    )


def add_dht_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dht",
        type=values.dht,
        default=None,
        metavar="WHERE",
        help="Nodes from which BitTorrent's DHT is entered, through the tunnels: default, none, or "
        "HOST:PORT[,HOST:PORT...] (default: default with the default --bootstrap, else none).",
    )


def dht_nodes(arguments: argparse.Namespace) -> tuple[HostPort, ...]:
    """Return the DHT nodes to start from; a private network asks the world's DHT only when told to."""
    if arguments.dht is not None:
        return tuple(arguments.dht)
    bootstrap_default, _ = arguments.bootstrap
    return values.DHT_NODES if bootstrap_default else ()


def add_path_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a client chooses its circuits' hops, and whether it is a hop for others."""
    parser.add_argument(
        "--guards",
        type=values.whole_number(0, 8),
        default=FIRST_LAYER.count,
        metavar="N",
        help="Number of nodes that circuits of several hops begin at, kept for weeks in --state. With 0, each circuit "
        "begins at another (default: %(default)s).",
    )
    parser.add_argument(
        "--diversity",
        choices=["prefer", "require"],
        default="prefer",
        help="Whether the hops of a circuit are in different networks (/16, IPv6 /32): prefer takes such hops where "
        "there is a choice; require builds no circuit without (default: %(default)s).",
    )
    parser.add_argument(
        "--asn-db",
        type=Path,
        metavar="FILE",
        help="Database of AS numbers in the MaxMind DB format (GeoLite2-ASN, DB-IP, IPinfo). Hops of one autonomous "
        "system then count as hops of one network.",
    )
    parser.add_argument("--no-relay", action="store_true", help="Take part in nobody else's circuits.")


def add_lockdown_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lockdown",
        choices=[mode.value for mode in LockdownMode],
        default=LockdownMode.AUTO.value,
        help="Keep libtorrent's anonymous sessions in a network namespace that has no way out but the tunnels. auto "
        "does so where the kernel allows it; on does not start without; off does without (Linux; default: "
        "%(default)s).",
    )


def add_isolate_option(parser: argparse.ArgumentParser, labels: bool = True) -> None:
    """`labels`: whether torrents have any here."""
    choices = [mode.value for mode in Isolation if labels or mode is not Isolation.LABEL]
    by_label = " with label, torrents with the same labels share;" if labels else ""
    parser.add_argument(
        "--isolate",
        choices=choices,
        default=Isolation.TORRENT.value,
        help="Which torrents share no circuit, tracker circuit, look-up and DHT id, so that nobody sees that they are "
        f"one user's. With torrent, no two share, up to {MOST_LANES} at a time;{by_label} with none, all torrents of a "
        "hop count share (default: %(default)s).",
    )


def add_device_option(parser: argparse.ArgumentParser, besides: str) -> None:
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"Send and receive through this network device alone; while it is gone, nothing leaves. {besides}",
    )


def check_device(arguments: argparse.Namespace) -> None:
    """Raises UsageError where there is no such device."""
    if arguments.device and not index_of(arguments.device):
        raise UsageError(f"there is no network device {arguments.device!r}; `ip link` lists them")


def add_host_name_option(parser: argparse.ArgumentParser, callers: str, besides: str) -> None:
    """Add the names that pages of others may not be served under: see system/web_guard.py."""
    parser.add_argument(
        "--host-name",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME[,NAME...]",
        help=f"Names by which {callers} may call this machine, beside {besides}.",
    )


def add_offer_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offer-together",
        type=values.whole_number(1, MOST_TOGETHER),
        default=MOST_TOGETHER,
        metavar="N",
        help="The most hidden torrents that share a circuit to an introduction point, which sees then that they are "
        f"one user's. Only torrents that --isolate does not keep apart share, and only once there are {OWN_CIRCUITS} "
        "such circuits. With 1 none do, and a thousand torrents take a thousand circuits (default: %(default)s).",
    )


def add_circuits_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--circuits",
        type=values.whole_number(0, 1024),
        default=0,
        metavar="C",
        help="Number of circuits to keep; 0 is 8, or two a worker if that is more (default: %(default)s).",
    )


def add_bootstrap_option(parser: argparse.ArgumentParser, private_swarm: bool = False) -> None:
    """Add --bootstrap; a private swarm has nodes of its own to start from."""
    usual = "Nodes from which the network is entered: default, none, or IP:PORT[,IP:PORT...] (default: default)."
    own = "More nodes beside the swarm's own, as IP:PORT[,IP:PORT...] (default: none)."
    parser.add_argument(
        "--bootstrap",
        type=values.bootstrap,
        metavar="WHERE",
        default="none" if private_swarm else "default",
        help=own if private_swarm else usual,
    )


def add_network_options(parser: argparse.ArgumentParser, private_swarm: bool = False) -> None:
    """Add the options on where the node is; None stands for a default that a private swarm sets itself."""
    from platformdirs import user_state_path  # a program that embeds the pool need not have it

    add_engine_option(parser)

    def default(usual: Any, own: Any, text: str, own_text: str) -> dict[str, Any]:
        return {"default": own if private_swarm else usual, "help": own_text if private_swarm else text}

    parser.add_argument(
        "--listen",
        type=values.host_port,
        metavar="IP:PORT",
        **default(
            ANYWHERE,
            None,
            "UDP address to listen at. With --steering off, N workers also take the N-1 ports above it (default: any "
            "address, any port).",
            "UDP address of the downloader. With --steering off, N workers also take the N-1 ports above it (default: "
            "one on loopback).",
        ),
    )
    add_bootstrap_option(parser, private_swarm)
    parser.add_argument(
        "--community-id",
        type=values.community_id,
        metavar="HEX",
        **default(
            TRIBLER_COMMUNITY_ID,
            None,
            "Network to join (default: Tribler's).",
            "Network of the swarm (default: random).",
        ),
    )
    parser.add_argument(
        "--state",
        type=values.folder,
        metavar="DIR",
        **default(
            user_state_path("tunnel-pool"),
            None,
            "Folder in which key and resume data are kept (default: %(default)s).",
            "Folder in which the downloader's key and resume data are kept (default: one that is removed at the end).",
        ),
    )
    parser.add_argument(
        "--allow-private",
        action="store_true",
        **default(
            False,
            True,
            "Let datagrams out to loopback and private addresses as well, for tests.",
            "Always on, as the swarm is on loopback.",
        ),
    )


def check_ports(arguments: argparse.Namespace) -> None:
    """Raises UsageError when the workers' ports would pass the last."""
    listen = arguments.listen
    own_ports = not shares_port(arguments.workers, arguments.steering == "auto")
    if own_ports and listen and listen.port and listen.port + max(arguments.workers.most, 1) - 1 > values.MAX_PORT:
        raise UsageError(f"--listen {listen} leaves no ports for {arguments.workers.most} workers")


def node_options(arguments: argparse.Namespace) -> NodeOptions:
    """Return what add_network_options and add_workers_option were given."""
    bootstrap_default, addresses = arguments.bootstrap
    check_ports(arguments)
    return NodeOptions(
        workers=arguments.workers,
        state_dir=arguments.state.absolute(),
        listen=arguments.listen,
        device=getattr(arguments, "device", None) or "",
        bootstrap_default=bootstrap_default,
        bootstrap=addresses,
        community_id=arguments.community_id,
        allow_private=arguments.allow_private,
        engine=EngineChoice(arguments.engine),
        circuits=getattr(arguments, "circuits", 0),
        nice=getattr(arguments, "nice", 0),
        steering=arguments.steering == "auto",
        start_method=StartMethod(arguments.start_method),
        guards=getattr(arguments, "guards", 0),
        requires_diversity=getattr(arguments, "diversity", "prefer") == "require",
        offered_together=getattr(arguments, "offer_together", MOST_TOGETHER),
        as_database=getattr(arguments, "asn_db", None),
        relays=not getattr(arguments, "no_relay", False),
        keeps_key=getattr(arguments, "command", "") not in CLIENTS,
    )
