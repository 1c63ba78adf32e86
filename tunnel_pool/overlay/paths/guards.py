"""The few first hops of a client, kept for weeks, and the second hops of its hidden services, kept for days. Pure.

A client that chooses a random first hop for each circuit soon meets a hostile one. Somebody who can ask for circuits
(a downloader asks a hidden seeder for a rendezvous) gets one over his own node within a few requests. With guards,
either a guard is hostile, which is unlikely for so few nodes, or no request ever meets a hostile first hop. This
follows Tor's guard specification (spec.torproject.org/guard-spec) and its "vanguards-lite" (proposal 333), simplified:
there is one sampled list, in order. Its first members are the primary ones; the next are used only while none of the
primary ones is there.

Pure: candidates, the time in seconds since the epoch and the source of randomness are the caller's.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from tunnel_pool.overlay.ground.networks import NetworksOf, network_of, networks_of
from tunnel_pool.overlay.ground.path import Node

DAY_S = 86400.0
MAX_SAMPLED = 20
RESERVES = 2
MAX_PORT = 0xFFFF
ABSENT_S = 14 * DAY_S  # a guard that nobody has seen for so long is given up
ABSENT_WHEN_FULL_S = 3600.0  # the same, when all guards that were sampled are gone


@dataclass(frozen=True, slots=True)
class Guard:
    key: bytes  # the public key
    host: str
    port: int
    until_s: float  # until when the node is a guard
    seen_s: float  # when it was last among the candidates


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """Says how many guards a layer uses at a time, and between how many days each is one."""

    count: int
    least_days: float
    most_days: float


FIRST_LAYER = LayerSettings(2, 30, 60)
SECOND_LAYER = LayerSettings(4, 1, 12)


@dataclass(slots=True)
class GuardLayer:
    settings: LayerSettings
    sampled: list[Guard] = field(default_factory=list)

    def choose(
        self, candidates: Iterable[Node], now_s: float, rng: random.Random, networks_of: NetworksOf = networks_of
    ) -> tuple[list[bytes], int]:
        """Return the keys of the guards among the candidates, primary ones first, and the number of primary ones.

        If there are too few, sample more guards, from networks without a guard if possible.
        """
        known = {node.key: node for node in candidates}
        self._forget(known, now_s)
        wanted = self.settings.count + RESERVES
        there = [guard.key for guard in self.sampled if guard.key in known]
        strangers = [node for key, node in known.items() if key not in {guard.key for guard in self.sampled}]
        rng.shuffle(strangers)
        while len(there) < wanted and strangers and len(self.sampled) < MAX_SAMPLED:
            taken = frozenset[str]().union(*(networks_of(guard.host) for guard in self.sampled))
            node = next((each for each in strangers if taken.isdisjoint(networks_of(each.host))), strangers[0])
            strangers.remove(node)
            days = rng.uniform(self.settings.least_days, self.settings.most_days)
            self.sampled.append(Guard(node.key, node.host, node.port, now_s + days * DAY_S, now_s))
            there.append(node.key)
        primary = {guard.key for guard in self.sampled[: self.settings.count]}
        return there[:wanted], len(primary.intersection(there))

    def _forget(self, known: Mapping[bytes, Node], now_s: float) -> None:
        """Remove guards whose time is over, and those that are gone."""
        kept = [
            replace(guard, seen_s=now_s, host=known[guard.key].host, port=known[guard.key].port)
            if guard.key in known
            else guard
            for guard in self.sampled
            if now_s < guard.until_s
        ]
        kept = [guard for guard in kept if now_s - guard.seen_s < ABSENT_S]
        there = sum(guard.key in known for guard in kept)
        if len(kept) >= MAX_SAMPLED and there < self.settings.count:
            kept = [guard for guard in kept if now_s - guard.seen_s < ABSENT_WHEN_FULL_S]
        self.sampled = kept


class GuardOrder(NamedTuple):
    """Holds public keys of guards: those to be used first, then those in reserve."""

    first: Sequence[bytes]
    second: Sequence[bytes]
    primary: int = FIRST_LAYER.count  # how many of `first` share the circuits; the others are for when these fail


class Guards:
    """Holds both layers of guards. Call `choose` again whenever the candidates have changed."""

    def __init__(self, rng: random.Random | None = None, count: int = FIRST_LAYER.count) -> None:
        """`count`: how many first hops are used at a time."""
        self._rng = rng or random.SystemRandom()
        self.first = GuardLayer(replace(FIRST_LAYER, count=count))
        self.second = GuardLayer(SECOND_LAYER)

    def choose(self, relays: Iterable[Node], now_s: float, networks_of: NetworksOf = networks_of) -> GuardOrder:
        relays = list(relays)
        first, primary = self.first.choose(relays, now_s, self._rng, networks_of)
        guards = {guard.key for guard in self.first.sampled}
        others = [node for node in relays if node.key not in guards] or relays
        second, _ = self.second.choose(others, now_s, self._rng, networks_of)
        return GuardOrder(first, second, primary)

    def identities(self) -> list[tuple[bytes, float]]:
        """Return who is a guard, and when each was seen, to the day: what is worth to be kept."""
        return [(guard.key, guard.seen_s // DAY_S) for _, layer in self._layers() for guard in layer.sampled]

    def places(self) -> list[tuple[str, int]]:
        """Return where the guards of both layers were last."""
        return [(guard.host, guard.port) for _, layer in self._layers() for guard in layer.sampled if guard.port]

    def encode(self) -> bytes:
        """Return what `restore` takes, as JSON."""

        def plain(guard: Guard) -> dict[str, Any]:
            return {**asdict(guard), "key": guard.key.hex()}

        return json.dumps(
            {name: [plain(g) for g in layer.sampled] for name, layer in self._layers()}, indent=1
        ).encode()

    def restore(self, data: bytes) -> None:
        """Go on with the guards of an earlier run. Raises ValueError for what `encode` did not write."""
        try:
            found = json.loads(data)
            for name, layer in self._layers():
                guards = [
                    Guard(
                        bytes.fromhex(g["key"]), str(g["host"]), int(g["port"]), float(g["until_s"]), float(g["seen_s"])
                    )
                    for g in found[name]
                ]
                for guard in guards:
                    network_of(guard.host)  # raises for what is no address
                    if not 0 <= guard.port <= MAX_PORT:
                        raise ValueError(f"port {guard.port}")
                layer.sampled = guards[:MAX_SAMPLED]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a list of guards: {error!r}") from None

    def _layers(self) -> list[tuple[str, GuardLayer]]:
        return [("first", self.first), ("second", self.second)]
