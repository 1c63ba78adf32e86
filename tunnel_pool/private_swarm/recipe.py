"""The configuration of a private network: which nodes it needs, and what each of them is told. Pure."""

import ipaddress
import json
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any, NamedTuple

from tunnel_pool.overlay.ground.config import HostPort

MORE_NODES = 2  # that may be away
ALLOWED = ("Where to the exit sends: the networks of the nodes. Add those of seeders, daemons and trackers elsewhere.",)


class Node(NamedTuple):
    name: str
    address: HostPort
    is_exit: bool


def least_nodes(hops: int) -> int:
    """Return how many nodes, exits among them, torrents of this hop count need: each hop is another node.

    A seeder and its downloader meet at any of them; both relay for others as well.
    """
    return hops


def nodes_of(hosts: Sequence[str], port: int, relays: int, exits: int) -> list[Node]:
    """Return the nodes, spread over the machines in turn; each machine's have ports from `port` on."""
    names = [f"relay-{number}" for number in range(1, relays + 1)] + [
        f"exit-{number}" for number in range(1, exits + 1)
    ]
    used = dict.fromkeys(hosts, 0)
    nodes = []
    for place, name in enumerate(names):
        host = hosts[place % len(hosts)]
        nodes.append(Node(name, HostPort(host, port + used[host]), name.startswith("exit")))
        used[host] += 1
    return nodes


def networks_of(nodes: Iterable[Node]) -> list[str]:
    """Return the networks that the nodes' machines are in: this machine, or the 256 addresses around each."""
    hosts = {ipaddress.ip_address(node.address.host) for node in nodes}
    return sorted({str(ipaddress.ip_network((host, 8 if host.is_loopback else 24), strict=False)) for host in hosts})


def _toml(table: str, options: dict[str, Any], about: Iterable[str]) -> str:
    lines = [*(f"# {line}" for line in about), "", f"[{table}]"]
    return "\n".join([*lines, *(f"{name} = {json.dumps(value)}" for name, value in options.items())]) + "\n"


def files_of(nodes: Sequence[Node], community_id: str, hops: int, folder: str, rpc: HostPort) -> dict[str, str]:
    """Return the content of each file by its name: a configuration for each node and the daemons, and how to start."""
    bootstrap = ",".join(str(node.address) for node in nodes)
    network = {"bootstrap": bootstrap, "community-id": community_id, "allow-private": True}
    files = {}
    for node in nodes:
        exit_of = {"exit": ["all"]} if node.is_exit else {}
        options = {
            "listen": str(node.address),
            **network,
            "state": f"{folder}/state/{node.name}",
            "workers": "1",
            **exit_of,
        }
        about = [f"{node.name} of a private network; start it on {node.address.host}: tunnel-pool node --config FILE"]
        limits = _toml("exit", {"allow_networks": networks_of(nodes)}, ALLOWED)
        files[f"{node.name}.toml"] = _toml("node", options, about) + (f"\n{limits}" if node.is_exit else "")
    options = {
        **network,
        "hops": hops,
        "dht": "none",
        "folder": f"{folder}/downloads",
        "state": f"{folder}/state/daemon",
        "rpc": str(rpc),
        "workers": "1",
    }
    about = ["A daemon of a private network: tunnel-pool daemon --config FILE"]
    files["daemon.toml"] = _toml("daemon", options, about)
    seed = (
        f"tunnel-pool seed FILE --hops {hops} --workers 1 --allow-private --state {quote(folder)}/state/seeder "
        f"--community-id {community_id} --bootstrap {bootstrap}"
    )
    files["README"] = _readme(nodes, hops, folder, seed, rpc)
    return files


def _readme(nodes: Sequence[Node], hops: int, folder: str, seed: str, rpc: HostPort) -> str:
    lines = [
        f"A private network of {len(nodes)} nodes, for torrents of up to {hops} hops, which need {least_nodes(hops)}.",
        "Nobody else is in it who has not got its community id, which is in these files and in each packet.",
        "",
        "Start each node on its machine, the seeder where FILE is, and the daemon where it is to be downloaded:",
        "",
        *(f"  {node.address.host:16}tunnel-pool node --config {quote(folder)}/{node.name}.toml" for node in nodes),
        f"  {'':16}{seed}",
        f"  {'':16}tunnel-pool daemon --config {quote(folder)}/daemon.toml",
        "",
        "The seeder prints a magnet link. Give it to the daemon:",
        "",
        f"  tunnel-pool add 'LINK' --rpc {rpc}",
        "",
        "It finds the seeder in the network: no tracker is asked, and no exit, which are for peers outside of it.",
        "Exits send to the networks of these machines alone (allow_networks), private ones among them: do not take",
        "these files for the public network. A seeder or daemon in another network has to be added there.",
        "",
    ]
    return "\n".join(lines)
