"""py-ipv8's routing tables, copied into the engine at each change."""

from collections import UserDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from tunnel_pool.packet_engine._native import Keys, Stats

Route = TypeVar("Route")


class HeldKeys:
    """Holds a hop's keys in the engine, and the SessionKeys, ours or py-ipv8's, that they were made from."""

    def __init__(self, source: Any) -> None:
        self.source = source
        # A node that joins a circuit seals its list of candidates with the originator's
        # key and first counter (py-ipv8 community.py, on_create), and py-ipv8's
        # originator its first cell, too: whoever sees both learns what they say. We
        # leave out one counter.
        forward = source.salt_explicit_forward + 1
        self.keys = Keys(
            (bytes(source.key_forward), bytes(source.salt_forward), forward),
            (bytes(source.key_backward), bytes(source.salt_backward), source.salt_explicit_backward),
        )


class KeyRing:
    """Keeps one set of counters per SessionKeys, also when an exit becomes a relay: a nonce is used once."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[int, HeldKeys] = WeakValueDictionary()

    def hold(self, source: Any) -> HeldKeys:
        # The entry keeps `source` alive, so its id is not another's.
        held = self._held.get(id(source))
        if held is None:
            held = self._held[id(source)] = HeldKeys(source)
        return held


class RouteTable(UserDict[int, Route], Generic[Route]):
    """A dict of routes that tells the engine; `stats` has what each carried.

    py-ipv8 marks a circuit dirty when its hops change and reads it from the
    table afterwards "for notifying the Rust Endpoint": here, too.
    `streams` of a route is what it has of them (overlay/ground/streams.py).
    """

    def __init__(
        self, tell: Callable[[int, Route, Stats], tuple[HeldKeys, ...]], forget: Callable[[int], None]
    ) -> None:
        self._tell = tell
        self._forget = forget
        self._held: dict[int, tuple[HeldKeys, ...]] = {}
        self._address: dict[int, tuple[str, int] | None] = {}
        self.stats: dict[int, Stats] = {}
        super().__init__()

    def __setitem__(self, circuit_id: int, route: Route) -> None:
        super().__setitem__(circuit_id, route)
        # A route that replaces another under the same id goes on with the counters of the old one.
        self.stats.setdefault(circuit_id, Stats())
        self.refresh(circuit_id)

    def __getitem__(self, circuit_id: int) -> Route:
        route: Route = self.data[circuit_id]
        if getattr(route, "dirty", False):
            self.refresh(circuit_id)
        return route

    def __delitem__(self, circuit_id: int) -> None:
        super().__delitem__(circuit_id)
        for kept in (self._held, self._address, self.stats):
            kept.pop(circuit_id, None)
        self._forget(circuit_id)

    def update_statistics(self, circuit_id: int) -> None:
        """Bring what the engine counted into the route; tell the engine where its neighbour is now."""
        route: Any = self.data.get(circuit_id)
        if route is None:
            return
        route.bytes_up, route.bytes_down, active_s = self.stats[circuit_id].read()
        route.last_activity = max(route.last_activity, active_s)
        route.streams = self.stats[circuit_id].read_streams()
        if self._address[circuit_id] != _neighbour(route):
            self.refresh(circuit_id)

    def refresh(self, circuit_id: int) -> None:
        """Tell the engine how the route is now."""
        route: Any = self.data[circuit_id]
        self._address[circuit_id] = _neighbour(route)
        self._held[circuit_id] = self._tell(circuit_id, route, self.stats[circuit_id])
        if hasattr(route, "dirty"):
            route.dirty = False


def _neighbour(route: Any) -> tuple[str, int] | None:
    """Return where the route's cells come from or go to; a circuit may have nobody yet."""
    address: tuple[str, int] | None = route.hop.address if route.hop is not None else None
    return address
