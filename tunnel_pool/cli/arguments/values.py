"""Parses the values of options: each function takes a text, and raises ArgumentTypeError with what it has to be."""

import argparse
import ipaddress
from collections.abc import Callable
from pathlib import Path

from tunnel_pool.overlay.ground.config import COMMUNITY_ID_BYTES, ExitFrom, HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.tunnels import MAX_WORKERS, physical_cores

MAX_PORT = 0xFFFF
DHT_NODES = (
    HostPort("dht.libtorrent.org", 25401),
    HostPort("router.bittorrent.com", 6881),
    HostPort("dht.transmissionbt.com", 6881),
)


def workers(text: str) -> WorkerRange:
    """Parse --workers: a number, a range, or `auto`, as many as there is work for."""
    if text == "auto":
        return WorkerRange(1, min(physical_cores(), MAX_WORKERS))
    least, dots, most = text.partition("..")
    if not dots:
        return WorkerRange(number := whole_number(0, MAX_WORKERS, "or MIN..MAX or auto")(text), number)
    parse = whole_number(1, MAX_WORKERS, "in MIN..MAX")
    found = WorkerRange(parse(least), parse(most))
    if found.least > found.most:
        raise argparse.ArgumentTypeError(f"{text!r} is a range whose minimum is above its maximum")
    return found


def whole_number(least: int, most: int, otherwise: str = "") -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most} {otherwise}".rstrip())
        return value

    return parse


def host_port(text: str) -> HostPort:
    """Parse HOST:PORT with an IPv4 address: a name would be looked up outside the tunnels."""
    host, _, port = text.rpartition(":")
    try:
        address = HostPort(str(ipaddress.IPv4Address(host)), int(port))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not IPV4:PORT") from None
    if not 0 <= address.port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 0 to 65535")
    return address


def peer_address(text: str) -> HostPort:
    address = host_port(text)
    if address.port == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has no port")
    return address


def destination(text: str) -> HostPort:
    """Parse IP:PORT, where the address may be IPv6, in brackets or not."""
    host, _, port = text.rpartition(":")
    try:
        address = HostPort(str(ipaddress.ip_address(host.strip("[]"))), int(port))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not IP:PORT") from None
    if not 0 <= address.port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 0 to 65535")
    return address


def exit_from(text: str) -> ExitFrom:
    """Parse IP, or IP:PORT-PORT."""
    host, _, ports = text.partition(":")
    try:
        address = str(ipaddress.IPv4Address(host))
        first, last = (int(part) for part in ports.split("-")) if ports else (0, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not IPV4 or IPV4:PORT-PORT") from None
    if ports and not 0 < first <= last <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} has no ports from 1 to 65535 in order")
    return ExitFrom(address, (first, last))


def bootstrap(text: str) -> tuple[bool, tuple[HostPort, ...]]:
    """Parse `--bootstrap` into whether py-ipv8's own addresses are used, and further addresses."""
    if text in ("default", "none"):
        return text == "default", ()
    return False, tuple(peer_address(part) for part in text.split(","))


def name_port(text: str) -> HostPort:
    """Parse HOST:PORT, where the host may be a name: an exit looks it up."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return HostPort(host, int(port))


def dht(text: str) -> tuple[HostPort, ...]:
    """Parse the nodes of BitTorrent's DHT to start from."""
    if text in ("default", "none"):
        return DHT_NODES if text == "default" else ()
    return tuple(name_port(part) for part in text.split(","))


def community_id(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != COMMUNITY_ID_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not {2 * COMMUNITY_ID_BYTES} hexadecimal digits")
    return value


def folder(text: str) -> Path:
    """Parse a path; refuse the empty one, which an unset shell variable leaves."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no folder")
    return Path(text)
