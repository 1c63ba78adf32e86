"""Puts into words what may leave from an exit. Pure."""

from tunnel_pool.node.config import PROTOCOL_NAMES, Exit
from tunnel_pool.overlay.ground.exit_rules import ExitRules, Protocol
from tunnel_pool.rpc.drop_reasons import DropReason

REASONS = {
    "exit_not_offered": "there is no --exit; a relay lets messages of hidden services out, and nothing else",
    "exit_from_ipv4": "what leaves comes from --listen's or --exit-from's IPv4 address: --exit-from 0.0.0.0 adds IPv6",
    "no_way_to_ipv6": "this machine has no route to IPv6 addresses",
    "exit_destination_refused": "never to private, reserved or multicast addresses, nor to port 0",
    DropReason.EXIT_NETWORK_DENIED: "a denied network, or none of the allowed ones",
    DropReason.EXIT_PORT_DENIED: "a denied port, or none of the allowed ones",
}
_WHAT = {
    Protocol.BITTORRENT: "BitTorrent's data (uTP, BEP 29)",
    Protocol.DHT: "BitTorrent's DHT (BEP 5)",
    Protocol.UDP_TRACKERS: "UDP trackers (BEP 15)",
    Protocol.IPV8: "messages of IPv8 overlays",
    Protocol.HTTP: "requests to HTTP trackers; their bencoded answers come back, nothing else",
    Protocol.TCP: "BitTorrent over TCP, after a plain handshake (BEP 3) of both sides; by streams",
    Protocol.HTTPS: "TLS to port 443, for HTTPS trackers and web seeds; by streams",
    Protocol.ENCRYPTED_TCP: "BitTorrent over TCP with encrypted handshakes, which look like anything; by streams",
}


def describe(rules: ExitRules, exit_: Exit, allow_private: bool) -> str:
    """Return the policy in words, line by line."""
    lines = ["What leaves from here, told by its content:"]
    let_out = rules.protocols or Protocol(0)
    for name, protocol in PROTOCOL_NAMES.items():
        lines.append(f"  {'yes' if protocol in let_out else 'no ':3} {name:13} {_WHAT[protocol]}")
    lines.append("  yes messages of hidden services between relays, as from every node of the network")
    lines.append("Where to:")
    if allow_private:
        lines.append("  private and loopback addresses, too: --allow-private, for tests")
    else:
        lines.append("  public addresses only: " + REASONS["exit_destination_refused"])
    if rules.allowed is not None:
        lines.append(f"  only to {len(rules.allowed.firsts)} ranges of addresses: {', '.join(exit_.allow_networks)}")
    if rules.denied.firsts:
        lines.append(f"  not to {len(rules.denied.firsts)} ranges of addresses: {', '.join(exit_.deny_networks)}")
    if rules.allowed_ports is not None:
        lines.append(f"  only to ports {_ports(rules.allowed_ports)}")
    if rules.denied_ports.firsts:
        lines.append(f"  not to ports {_ports(rules.denied_ports)}")
    if rules.https_names is not None and Protocol.HTTPS in let_out:
        lines.append(f"  by TLS only to {', '.join(rules.https_names)}, and what ends in a dot and one of these")
    lines.append("How much of it, of one circuit:")
    for text, number in (
        ("destinations at a time", rules.max_destinations),
        ("datagrams to a destination that never answered", rules.max_unanswered),
        ("new destinations a second", rules.new_per_s),
    ):
        lines.append(f"  {number or 'any number of'} {text}")
    lines.append("What comes in unasked:")
    if rules.inbound_per_s is not None:
        lines.append(f"  {rules.inbound_per_s or 'any number of'} datagrams a second of strangers to a circuit")
        lines.append("      that has told a tracker or the DHT where it is found")
    else:
        lines.append("  nothing: peers that circuits tell trackers of do not reach them")
    return "\n".join(lines)


def _ports(ranges: "tuple[tuple[int, ...], tuple[int, ...]]") -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in zip(*ranges, strict=True))
