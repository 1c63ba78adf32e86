"""The contents of RPC_SYNC: the changed fields of a child's circuits and candidates. Pure.

`SyncEncoder` (child) compares a snapshot with the last one it sent;
`SyncState` (main) applies the frames and says what changed. Both are pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from tunnel_pool.rpc import control_pb2 as pb

Key = TypeVar("Key")
State = TypeVar("State")


class PeerState(NamedTuple):
    """A hop or a candidate."""

    public_key: bytes
    host: str
    port: int
    flags: tuple[int, ...]


class StreamsState(NamedTuple):
    """Streams in control.proto."""

    are_spoken: bool = False
    open: int = 0
    all: int = 0
    round_trip_s: float = 0.0


NO_STREAMS = StreamsState()


class CircuitState(NamedTuple):
    """One circuit as its child sees it; the fields of CircuitDelta in control.proto."""

    circuit_id: int
    goal_hops: int = 0
    ctype: str = ""
    hops: tuple[PeerState, ...] = ()
    unverified_hop: PeerState | None = None
    closing: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    creation_time: float = 0.0
    last_activity: float = 0.0
    infohash: bytes = b""
    e2e: bool = False
    group: int = 0
    detour: int = 0
    known_as: int = 0
    streams: StreamsState = NO_STREAMS


class CarriedState(NamedTuple):
    """Counts what a child relayed and exited for others, and what its socket sent and received, since it started."""

    relays: int = 0  # open now
    exits: int = 0  # open now
    relayed_bytes: int = 0
    exited_bytes: int = 0
    joined: int = 0  # circuits of others that were joined
    sent_bytes: int = 0  # our own traffic included
    received_bytes: int = 0
    strangers: int = 0  # datagrams of strangers that came in at exits (overlay/serving/strangers.py)
    stranger_bytes: int = 0

    def ended(self) -> "CarriedState":
        """Return these counts as they are once all relays and exits are closed."""
        return self._replace(relays=0, exits=0)

    def plus(self, other: "CarriedState") -> "CarriedState":
        return CarriedState(*map(sum, zip(self, other, strict=True)))


NOTHING_CARRIED = CarriedState()


class RelayState(NamedTuple):
    """Relay in control.proto."""

    circuit_id: int
    next_id: int
    rendezvous: bool
    direction: int
    bytes_up: int
    bytes_down: int
    creation_time: float
    public_key: bytes
    host: str
    port: int


class ExitState(NamedTuple):
    """Exit in control.proto."""

    circuit_id: int
    enabled: bool
    bytes_up: int
    bytes_down: int
    creation_time: float
    public_key: bytes
    host: str
    port: int
    introduced: tuple[tuple[bytes, bytes], ...] = ()  # IntroducedSeeder in control.proto: key and infohash
    cookie: bytes = b""
    streams: int = 0


class IntroductionState(NamedTuple):
    """IntroductionPoint in control.proto."""

    public_key: bytes
    host: str
    port: int
    seeder_key: bytes
    source: int
    last_seen: float


class SwarmState(NamedTuple):
    """SwarmPicture in control.proto."""

    infohash: bytes
    last_lookup: float
    introduction_points: tuple[IntroductionState, ...]
    circuit_ids: tuple[int, ...]
    seeder_keys: tuple[bytes, ...]
    past_bytes_up: int
    past_bytes_down: int
    offered: bool = False


def _exit_message(state: ExitState) -> pb.Exit:
    seeders = [pb.IntroducedSeeder(seeder_key=key, infohash=infohash) for key, infohash in state.introduced]
    return pb.Exit(**{**state._asdict(), "introduced": seeders})


def _exit_state(message: pb.Exit) -> ExitState:
    seeders = tuple((seeder.seeder_key, seeder.infohash) for seeder in message.introduced)
    return _state(ExitState, message)._replace(introduced=seeders)


def _swarm_message(swarm: SwarmState) -> pb.SwarmPicture:
    points = [pb.IntroductionPoint(**point._asdict()) for point in swarm.introduction_points]
    return pb.SwarmPicture(**{**swarm._asdict(), "introduction_points": points})


def _swarm_state(message: pb.SwarmPicture) -> SwarmState:
    points = tuple(_state(IntroductionState, point) for point in message.introduction_points)
    values = {name: getattr(message, name) for name in SwarmState._fields}
    values["circuit_ids"], values["seeder_keys"] = tuple(message.circuit_ids), tuple(message.seeder_keys)
    return SwarmState(**{**values, "introduction_points": points})


def _state(kind: Callable[..., State], message: Message) -> State:
    """Return a tuple from the message's fields, which have the same names."""
    return kind(*(getattr(message, name) for name in kind._fields))  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Routes:
    """Holds what a child does for others, and the swarms that it takes part in."""

    relays: Mapping[int, RelayState] = field(default_factory=dict)
    exits: Mapping[int, ExitState] = field(default_factory=dict)
    swarms: Mapping[bytes, SwarmState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    circuits: Mapping[int, CircuitState] = field(default_factory=dict)
    candidates: Mapping[bytes, PeerState] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    carried: CarriedState = NOTHING_CARRIED
    routes: Routes | None = None  # None: not looked at this time


_OTHER_FIELDS = ("circuit_id", "hops", "unverified_hop", "streams")
_PLAIN_FIELDS = tuple(name for name in CircuitState._fields if name not in _OTHER_FIELDS)
_plain_values = attrgetter(*_PLAIN_FIELDS)


def _hop_message(hop: PeerState) -> pb.Hop:
    return pb.Hop(public_key=hop.public_key, address=pb.Address(host=hop.host, port=hop.port), flags=hop.flags)


def _hop_state(hop: pb.Hop) -> PeerState:
    return PeerState(hop.public_key, hop.address.host, hop.address.port, tuple(hop.flags))


def _peer_state(peer: pb.PeerInfo) -> PeerState:
    return PeerState(peer.public_key, peer.address.host, peer.address.port, tuple(peer.flags))


class SyncEncoder:
    """Turns snapshots into frames that hold only what changed since the frame before."""

    def __init__(self) -> None:
        self._sent: Snapshot | None = None
        self._sent_routes = Routes()

    def encode(self, snapshot: Snapshot) -> pb.Sync | None:
        """Return the next frame, the first one full; None when nothing changed.

        Circuits that vanished are not in it: RPC_CIRDEAD tells that.
        """
        old = self._sent if self._sent is not None else Snapshot()
        frame = pb.Sync(full=self._sent is None)
        self._sent = snapshot
        for circuit_id, circuit in snapshot.circuits.items():
            before = old.circuits.get(circuit_id)
            if circuit != before:
                frame.circuits.append(self._delta(circuit, before or CircuitState(circuit_id)))
        for public_key, candidate in snapshot.candidates.items():
            if old.candidates.get(public_key) != candidate:
                address = pb.Address(host=candidate.host, port=candidate.port)
                frame.candidates.append(pb.PeerInfo(public_key=public_key, address=address, flags=candidate.flags))
        frame.lost_candidates.extend(key for key in old.candidates if key not in snapshot.candidates)
        for name, value in snapshot.counters.items():
            if old.counters.get(name) != value:
                frame.counters[name] = value
        if snapshot.carried != old.carried:
            frame.carried.CopyFrom(pb.Carried(**snapshot.carried._asdict()))
        if snapshot.routes is not None:
            self._encode_routes(frame, snapshot.routes)
        return frame if frame.full or frame.ByteSize() else None

    def _encode_routes(self, frame: pb.Sync, now: Routes) -> None:
        before, self._sent_routes = self._sent_routes, now
        frame.relays.extend(pb.Relay(**relay._asdict()) for relay in _changed(now.relays, before.relays))
        frame.lost_relays.extend(before.relays.keys() - now.relays.keys())
        frame.exits.extend(_exit_message(exit_) for exit_ in _changed(now.exits, before.exits))
        frame.lost_exits.extend(before.exits.keys() - now.exits.keys())
        frame.swarms.extend(_swarm_message(swarm) for swarm in _changed(now.swarms, before.swarms))
        frame.lost_swarms.extend(before.swarms.keys() - now.swarms.keys())

    @staticmethod
    def _delta(now: CircuitState, before: CircuitState) -> pb.CircuitDelta:
        values = zip(_PLAIN_FIELDS, _plain_values(now), _plain_values(before), strict=True)
        changed = {name: value for name, value, value_before in values if value != value_before}
        delta = pb.CircuitDelta(circuit_id=now.circuit_id, **changed)
        if now.hops != before.hops:
            delta.hops.CopyFrom(pb.HopList(hops=[_hop_message(hop) for hop in now.hops]))
        if now.unverified_hop != before.unverified_hop:
            # An empty hop says that there is none any more.
            delta.unverified_hop.CopyFrom(_hop_message(now.unverified_hop) if now.unverified_hop else pb.Hop())
        if now.streams != before.streams:
            delta.streams.CopyFrom(pb.Streams(**now.streams._asdict()))
        return delta


def _changed(now: Mapping[Key, State], before: Mapping[Key, State]) -> list[State]:
    return [state for key, state in now.items() if before.get(key) != state]


class SyncState:
    """The main process' picture of one child, kept by applying its frames in order."""

    def __init__(self) -> None:
        self.circuits: dict[int, CircuitState] = {}
        self.candidates: dict[bytes, PeerState] = {}
        self.counters: dict[str, int] = {}
        self.carried = CarriedState()
        self.relays: dict[int, RelayState] = {}
        self.exits: dict[int, ExitState] = {}
        self.swarms: dict[bytes, SwarmState] = {}

    def clear(self) -> None:
        self.circuits.clear()
        self.candidates.clear()
        self.counters.clear()
        self.carried = CarriedState()
        self.relays.clear()
        self.exits.clear()
        self.swarms.clear()

    def apply(self, frame: pb.Sync) -> list[int]:
        """Apply one frame; returns the ids of the circuits that it changed."""
        if frame.full:
            self.clear()
        for delta in frame.circuits:
            self.circuits[delta.circuit_id] = self._merge(delta)
        _apply(
            self.candidates, {peer.public_key: _peer_state(peer) for peer in frame.candidates}, frame.lost_candidates
        )
        self.counters.update(frame.counters)
        if frame.HasField("carried"):
            self.carried = _state(CarriedState, frame.carried)
        _apply(self.relays, {relay.circuit_id: _state(RelayState, relay) for relay in frame.relays}, frame.lost_relays)
        _apply(self.exits, {exit_.circuit_id: _exit_state(exit_) for exit_ in frame.exits}, frame.lost_exits)
        _apply(self.swarms, {swarm.infohash: _swarm_state(swarm) for swarm in frame.swarms}, frame.lost_swarms)
        return [delta.circuit_id for delta in frame.circuits]

    def forget(self, circuit_id: int) -> None:
        self.circuits.pop(circuit_id, None)

    def _merge(self, delta: pb.CircuitDelta) -> CircuitState:
        before = self.circuits.get(delta.circuit_id, CircuitState(delta.circuit_id))
        has = delta.HasField
        values = {
            name: getattr(delta, name) if has(name) else value  # type: ignore[arg-type]
            for name, value in zip(_PLAIN_FIELDS, _plain_values(before), strict=True)
        }
        hops = tuple(_hop_state(hop) for hop in delta.hops.hops) if delta.HasField("hops") else before.hops
        unverified = before.unverified_hop
        if delta.HasField("unverified_hop"):
            unverified = _hop_state(delta.unverified_hop) if delta.unverified_hop.public_key else None
        streams = _state(StreamsState, delta.streams) if delta.HasField("streams") else before.streams
        return CircuitState(delta.circuit_id, hops=hops, unverified_hop=unverified, streams=streams, **values)


def _apply(known: dict[Key, State], new: Mapping[Key, State], lost: Iterable[Key]) -> None:
    known.update(new)
    for key in lost:
        known.pop(key, None)
