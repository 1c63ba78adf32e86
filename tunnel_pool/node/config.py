"""The configuration file of a node.

docs/node.toml is a sample with every key; `--show-policy` says how it is understood.
"""

import argparse
import datetime
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tunnel_pool.node.network_databases import is_named, networks_named
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.exit_rules import (
    INBOUND_PER_S,
    MAX_RANGES,
    ExitRules,
    Network,
    Protocol,
    Ranges,
    network_ranges,
)
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.toml_file import Section, read_toml

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
PROTOCOL_NAMES = {protocol.name.lower().replace("_", "-"): protocol for protocol in Protocol if protocol.name}
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_PORT = 0xFFFF
MAX_NUMBER = 0xFFFFFFFF
MAX_BYTES = 1 << 60


class ByteCount(int):
    """A number of bytes, written like `512 KiB`, `2 TB`, or plainly."""


class ByteRate(int):
    """Bytes a second, written like `10 MB/s`."""


class ClockTime(datetime.time):
    """A time of day like `23:30`, of the machine's local time."""


class Ports(tuple[int, int]):
    """One port or a range, written like `25` or `6881-6889`."""


class BothWays(Section, frozen=True):
    up: ByteRate | None = None
    down: ByteRate | None = None


NO_RATES = BothWays()


class Rates(Section, frozen=True):
    relayed: BothWays = NO_RATES
    exited: BothWays = NO_RATES
    own: BothWays = NO_RATES
    total: BothWays = NO_RATES
    circuit: BothWays = NO_RATES


class Window(Rates, frozen=True):
    """Rates that hold at some hours of some days instead; `from` is later than `to` over midnight."""

    days: list[str] = msgspec.field(default_factory=lambda: list(DAYS))
    since: ClockTime = msgspec.field(name="from", default=ClockTime(0, 0))
    until: ClockTime = msgspec.field(name="to", default=ClockTime(0, 0))


class Quota(Section, frozen=True):
    bytes: ByteCount
    day: int = 1
    counts: str = "both"


class Limits(Rates, frozen=True):
    burst_ms: int = 20
    max_delay_ms: int = 200
    circuit_memory: ByteCount = ByteCount(256 << 10)
    circuits: int = 4000
    circuits_per_neighbour: int = 1000
    circuits_per_minute: int = 3000
    schedule: list[Window] = msgspec.field(default_factory=list)
    quota: Quota | None = None

    def admission(self) -> Admission:
        """Return the caps on circuits."""
        return Admission(self.circuits, self.circuits_per_neighbour, self.circuits_per_minute)


class Exit(Section, frozen=True):
    allow_networks: list[str] = msgspec.field(default_factory=list)
    deny_networks: list[str] = msgspec.field(default_factory=list)
    allow_ports: list[Ports] = msgspec.field(default_factory=list)
    deny_ports: list[Ports] = msgspec.field(default_factory=list)
    max_destinations: int = 2000
    max_unanswered: int = 50
    new_destinations_per_s: int = 100
    inbound: bool = True
    inbound_per_s: int = INBOUND_PER_S
    databases: list[str] = msgspec.field(default_factory=list)
    https_names: list[str] = msgspec.field(default_factory=list)


class NodeConfig(Section, frozen=True):
    node: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: Limits = msgspec.field(default_factory=Limits)
    exit: Exit = msgspec.field(default_factory=Exit)


def parse_bytes(text: object, per_second: bool) -> int:
    """Raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text < MAX_BYTES:
        return text
    example = "10 MB/s" if per_second else "2 TB"
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d+)?)\s*([kKMGT]?i?B)(/s)?\s*", str(text))  # Mb would be bits
    if match is None or match[2].lower() not in UNITS or bool(match[3]) != per_second:
        raise ValueError(f"{text!r} is not like {example!r}")
    return int(float(match[1]) * UNITS[match[2].lower()])


def _parse_ports(text: object) -> Ports:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(text))
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not 0 < first <= last <= MAX_PORT:
        raise ValueError(f"{text!r} is no port from 1 to {MAX_PORT}, and no range like '6881-6889'")
    return Ports((first, last))


def _parse_time(text: object) -> ClockTime:
    if isinstance(text, datetime.time):
        return ClockTime(text.hour, text.minute)
    try:
        hour, minute = map(int, str(text).split(":"))
        return ClockTime(hour, minute)
    except ValueError:
        raise ValueError(f"{text!r} is not like '23:30'") from None


def _decode(kind: type, value: object) -> object:
    """Decode a value of a type of ours, as msgspec asks for it."""
    if kind is ByteCount:
        return ByteCount(parse_bytes(value, per_second=False))
    if kind is ByteRate:
        return ByteRate(parse_bytes(value, per_second=True))
    if kind is Ports:
        return _parse_ports(value)
    if kind is ClockTime:
        return _parse_time(value)
    raise NotImplementedError(kind)


def read_config(path: Path) -> NodeConfig:
    """Raises UserError: which key is wrong, and how."""
    return read_toml(path, NodeConfig, _check, _decode)


def _check(config: NodeConfig) -> None:
    """Check what types alone don't say. Raises ValueError."""
    for window in config.limits.schedule:
        for day in window.days:
            _one_of(day, DAYS, "limits.schedule.days")
    quota = config.limits.quota
    if quota is not None:
        _one_of(quota.counts, ("up", "down", "both"), "limits.quota.counts")
        if not 1 <= quota.day <= 28:
            raise ValueError("limits.quota.day must be from 1 to 28")
    for name in ("burst_ms", "max_delay_ms", "circuits", "circuits_per_neighbour", "circuits_per_minute"):
        if not 1 <= getattr(config.limits, name) <= MAX_NUMBER:
            raise ValueError(f"limits.{name} must be from 1 to {MAX_NUMBER}")
    for name in ("max_destinations", "max_unanswered", "new_destinations_per_s", "inbound_per_s"):
        if not 0 <= getattr(config.exit, name) <= MAX_NUMBER:
            raise ValueError(f"exit.{name} must be from 0, which is no limit, to {MAX_NUMBER}")


def _one_of(value: str, known: tuple[str, ...], key: str) -> None:
    if value not in known:
        raise ValueError(f"{key}: {value!r} is none of {', '.join(known)}")


def protocols(text: str) -> Protocol:
    """Parse a list of names, or `all`, which is all that can be told by its content.

    Raises argparse.ArgumentTypeError.
    """
    chosen = Protocol(0)
    for name in text.split(","):
        if name == "all":
            return Protocol(sum(Protocol)) & ~Protocol.ENCRYPTED_TCP
        if name not in PROTOCOL_NAMES:
            known = ", ".join(PROTOCOL_NAMES)
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known} and all")
        chosen |= PROTOCOL_NAMES[name]
    return chosen


def exit_rules(exit_: Exit, protocols: Protocol, folder: Path) -> ExitRules:
    """Make the exit's rules, and read its files of networks, relative to the folder. Raises UserError.

    Where it names systems or countries, that takes seconds.
    """
    named = filter(is_named, [*exit_.deny_networks, *exit_.allow_networks])
    known = networks_named(named, [folder / name for name in exit_.databases])
    denied = network_ranges(_networks(exit_.deny_networks, folder, known))
    allowed = network_ranges(_networks(exit_.allow_networks, folder, known)) if exit_.allow_networks else None
    if (ranges := len(denied.firsts) + (len(allowed.firsts) if allowed else 0)) > MAX_RANGES:
        raise UserError(f"{ranges} ranges of networks are too many, {MAX_RANGES} is the most")
    return ExitRules(
        protocols=protocols,
        denied=denied,
        allowed=allowed,
        denied_ports=Ranges.joined(exit_.deny_ports),
        allowed_ports=Ranges.joined(exit_.allow_ports) if exit_.allow_ports else None,
        max_destinations=exit_.max_destinations,
        max_unanswered=exit_.max_unanswered,
        new_per_s=exit_.new_destinations_per_s,
        inbound_per_s=exit_.inbound_per_s if exit_.inbound else None,
        https_names=tuple(exit_.https_names) or None,
    )


def _networks(entries: list[str], folder: Path, known: Mapping[str, list[Network]]) -> list[Network]:
    """Read entries that are each a network, or a file with one a line (`#` begins a comment). Raises UserError.

    `known` has the networks of entries that name a system or a country.
    """
    networks: list[Network] = []
    for entry in entries:
        if entry in known:
            networks += known[entry]
            continue
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            networks += _networks_in(folder / entry, entry)
    return networks


def _networks_in(path: Path, entry: str) -> list[Network]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{entry!r} is no network, and no file that can be read ({path}: {why})") from None
    networks: list[Network] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        try:
            networks += [ipaddress.ip_network(text, strict=False)] if text else []
        except ValueError:
            raise UserError(f"{path}, line {number}: {text!r} is no network") from None
    return networks
