"""An operator's rules of what leaves an exit: protocols, networks, ports, and how many destinations a circuit may have.

Beside the network's own rules (overlay/serving/exit_socket.py). The native engine's twin is packet_engine/src/rules.rs;
both give a refusal the same name, under which it is counted.
"""

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag
from typing import Any, NamedTuple

from ipv8.messaging.anonymization.exit_socket import DataChecker
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8

from tunnel_pool.overlay.ground.pacing import TokenBucket
from tunnel_pool.rpc.drop_reasons import DropReason

# Packed ranges travel in one control message (rpc/framing.py).
MAX_RANGES = 24_000
QUIET_S = 60.0  # after so long without a datagram either way, a destination makes room for another
LOOK_EVERY_S = 1.0
BURST_S = 10.0
MAX_KNOWN = 1 << 16
INBOUND_PER_S = 500  # where the operator says nothing

_MAPPED = int(ipaddress.IPv6Address("::ffff:0:0"))

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Protocol(IntFlag):
    """Names what a datagram is by its content, as the network does (py-ipv8's DataChecker), and what else leaves.

    HTTP is asked in messages, the last three come by streams: BitTorrent over TCP, TLS to port 443, and BitTorrent over
    TCP with its encrypted handshake, which can't be told from anything else.
    """

    BITTORRENT = 1
    DHT = 2
    UDP_TRACKERS = 4
    IPV8 = 8
    HTTP = 16
    TCP = 32
    HTTPS = 64
    ENCRYPTED_TCP = 128


STREAM_PROTOCOLS = Protocol.TCP | Protocol.HTTPS | Protocol.ENCRYPTED_TCP
BITTORRENT_FLAG_PROTOCOLS = Protocol.BITTORRENT | Protocol.DHT | Protocol.UDP_TRACKERS


def exit_protocols(rules: "ExitRules", peer_flags: Collection[int]) -> Protocol:
    """Return the protocols that the rules let out; where they name none, those that the peer flags stand for."""
    if rules.protocols is not None:
        return rules.protocols
    bittorrent = BITTORRENT_FLAG_PROTOCOLS if PEER_FLAG_EXIT_BT in peer_flags else Protocol(0)
    return bittorrent | (Protocol.IPV8 if PEER_FLAG_EXIT_IPV8 in peer_flags else Protocol(0))


def could_be_any_of(protocols: Protocol, data: bytes) -> bool:
    return (
        bool(protocols & Protocol.BITTORRENT and DataChecker.could_be_utp(data))
        or bool(protocols & Protocol.UDP_TRACKERS and DataChecker.could_be_udp_tracker(data))
        or bool(protocols & Protocol.DHT and DataChecker.could_be_dht(data))
        or bool(protocols & Protocol.IPV8 and DataChecker.could_be_ipv8(data))
    )


class Ranges(NamedTuple):
    """Holds the first and last of each range, in order and apart."""

    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()

    def contains(self, value: int) -> bool:
        at = bisect_right(self.firsts, value) - 1
        return at >= 0 and value <= self.lasts[at]

    def pack(self, size: int) -> bytes:
        """Return each number in `size` bytes, big endian."""
        pairs = zip(self.firsts, self.lasts, strict=True)
        return b"".join(number.to_bytes(size, "big") for pair in pairs for number in pair)

    @classmethod
    def unpack(cls, packed: bytes, size: int) -> "Ranges":
        numbers = [int.from_bytes(packed[at : at + size], "big") for at in range(0, len(packed), size)]
        return cls(tuple(numbers[::2]), tuple(numbers[1::2]))

    @classmethod
    def joined(cls, pairs: Iterable[tuple[int, int]]) -> "Ranges":
        """Join ranges, which may overlap, to some that are apart and in order."""
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in sorted(pairs):
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        return cls(tuple(firsts), tuple(lasts))


def _number(address: IpAddress) -> int:
    """Return the address as a number, IPv4 mapped into IPv6."""
    return int(address) + (_MAPPED if address.version == 4 else 0)


def network_ranges(networks: Iterable[Network]) -> Ranges:
    return Ranges.joined((_number(network[0]), _number(network[-1])) for network in networks)


ADDRESS_BYTES = 16
PORT_BYTES = 2


@dataclass(frozen=True, slots=True)
class ExitRules:
    """Holds an operator's rules for an exit; None, and 0 for a number, is no rule where nothing else is said."""

    protocols: Protocol | None = None  # None: what the peer flags say
    denied: Ranges = field(default_factory=Ranges)
    allowed: Ranges | None = None
    denied_ports: Ranges = field(default_factory=Ranges)
    allowed_ports: Ranges | None = None
    max_destinations: int = 0  # the most destinations of a circuit at a time
    max_unanswered: int = 0  # datagrams to an address that never answered
    new_per_s: int = 0  # destinations of a circuit, with a burst of BURST_S
    # Datagrams of strangers to a circuit that has asked to be found (strangers.py); None: none, 0: any number.
    inbound_per_s: int | None = INBOUND_PER_S
    https_names: tuple[str, ...] | None = None  # where TLS may go: these names, and those that end in a dot and one

    def pack(self) -> bytes:
        """Return the rules as they go to children and into the engine (packet_engine/src/rules.rs, ExitRules::unpack).

        Each field in this order: 0 for None; else 1, the length of the value (4 bytes), and the value: `protocols` in 1
        byte, ranges as Ranges.pack has them, numbers in 4 bytes, each name in UTF-8 with a line feed. All big endian.
        """
        packed = bytearray()
        for each in fields(self):
            if (value := getattr(self, each.name)) is None:
                packed += b"\0"
            else:
                of_value = _CODECS[each.name].pack(value)
                packed += b"\1" + _NUMBER.pack(len(of_value)) + of_value
        return bytes(packed)

    @classmethod
    def unpack(cls, packed: bytes) -> "ExitRules":
        """Return the rules that were packed. Raises ValueError."""
        rules: dict[str, Any] = {}
        at = 0
        for each in fields(cls):
            value_at = at + 1 + _NUMBER_BYTES
            match packed[at : at + 1]:
                case b"\0":
                    rules[each.name], at = None, at + 1
                case b"\1" if value_at <= len(packed):
                    at = value_at + _NUMBER.unpack(packed[at + 1 : value_at])
                    rules[each.name] = _CODECS[each.name].unpack(packed[value_at:at])
                case _:
                    raise ValueError("exit rules that were cut short")
        if at != len(packed):
            raise ValueError("exit rules of another length")
        return cls(**rules)

    def with_denied(self, hosts: Iterable[str]) -> "ExitRules":
        """Return these rules with some IP addresses denied besides."""
        numbers = [_number(ipaddress.ip_address(host)) for host in hosts]
        pairs = [*zip(self.denied.firsts, self.denied.lasts, strict=True), *((each, each) for each in numbers)]
        return replace(self, denied=Ranges.joined(pairs))

    def destination_refusal(self, host: str, port: int) -> str | None:
        """Return the name of the rule that forbids this IP address and port."""
        address: IpAddress = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        number = _number(address)
        if self.denied.contains(number) or (self.allowed is not None and not self.allowed.contains(number)):
            return DropReason.EXIT_NETWORK_DENIED
        if self.denied_ports.contains(port) or (
            self.allowed_ports is not None and not self.allowed_ports.contains(port)
        ):
            return DropReason.EXIT_PORT_DENIED
        return None


class _Codec(NamedTuple):
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


def _ranges_of(size: int) -> _Codec:
    return _Codec(lambda ranges: ranges.pack(size), lambda packed: Ranges.unpack(packed, size))


_NUMBER_BYTES = 4
_NUMBER = _Codec(lambda number: number.to_bytes(_NUMBER_BYTES, "big"), lambda packed: int.from_bytes(packed, "big"))
_NAMES = _Codec(
    lambda names: "".join(f"{name}\n" for name in names).encode(),
    lambda packed: tuple(packed.decode().split("\n")[:-1]),
)
_CODECS = {
    "protocols": _Codec(lambda protocols: bytes([protocols]), lambda packed: Protocol(int.from_bytes(packed, "big"))),
    "denied": _ranges_of(ADDRESS_BYTES),
    "allowed": _ranges_of(ADDRESS_BYTES),
    "denied_ports": _ranges_of(PORT_BYTES),
    "allowed_ports": _ranges_of(PORT_BYTES),
    "max_destinations": _NUMBER,
    "max_unanswered": _NUMBER,
    "new_per_s": _NUMBER,
    "inbound_per_s": _NUMBER,
    "https_names": _NAMES,
}

NO_RULES = ExitRules()


class _Contact:
    __slots__ = ("active_s", "unanswered")

    def __init__(self, now_s: float) -> None:
        self.unanswered: int | None = 0  # datagrams sent since it is known; None once it has answered
        self.active_s = now_s


class Contacts:
    """Limits the destinations of one circuit that ends here, by IP address: who floods one can choose any port."""

    def __init__(self) -> None:
        self._known: dict[str, _Contact] = {}
        self._new = TokenBucket()
        self._looked_s = 0.0

    def refusal(self, rules: ExitRules, to: tuple[str, int], now_s: float) -> str | None:
        """Return why one more datagram may not go there; one that may is counted."""
        if not (rules.max_destinations or rules.max_unanswered or rules.new_per_s):
            return None
        contact = self._known.get(to[0])
        if contact is None:
            if (why := self._refusal_of_new(rules, now_s)) is not None:
                return why
            contact = self._known[to[0]] = _Contact(now_s)
        contact.active_s = now_s
        if contact.unanswered is not None:
            if rules.max_unanswered and contact.unanswered >= rules.max_unanswered:
                return DropReason.EXIT_UNANSWERED
            contact.unanswered += 1
        return None

    def _refusal_of_new(self, rules: ExitRules, now_s: float) -> str | None:
        most = rules.max_destinations or MAX_KNOWN
        if rules.new_per_s and not self._new.permits(now_s):
            return DropReason.EXIT_NEW_DESTINATIONS_TOO_FAST
        self._forget_the_quiet(most, now_s)
        if len(self._known) >= most:
            return DropReason.EXIT_TOO_MANY_DESTINATIONS
        if rules.new_per_s:
            self._new.take(rules.new_per_s, BURST_S, now_s)
        return None

    def _forget_the_quiet(self, most: int, now_s: float) -> None:
        """Forget quiet destinations, once a minute, and in a full table once a second."""
        if now_s - self._looked_s >= (LOOK_EVERY_S if len(self._known) >= most else QUIET_S):
            self._looked_s = now_s
            self._known = {to: known for to, known in self._known.items() if now_s - known.active_s < QUIET_S}

    def may_look_up(self, rules: ExitRules, now_s: float) -> bool:
        """Return whether a name may be looked up now; each time, it counts as a new destination."""
        if rules.new_per_s:
            if not self._new.permits(now_s):
                return False
            self._new.take(rules.new_per_s, BURST_S, now_s)
        return True

    def answered(self, source: tuple[str, int], now_s: float) -> None:
        if (contact := self._known.get(source[0])) is not None:
            contact.unanswered = None
            contact.active_s = now_s
