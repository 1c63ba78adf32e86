"""What RPC_SYNC carries: the changed fields of a child's circuits and candidates.

`SyncEncoder` (child) compares a snapshot with the last one it sent;
`SyncState` (main) applies the frames and says what changed. Both are pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from rpc import control_pb2 as pb


class PeerState(NamedTuple):
    """A hop or a candidate."""

    public_key: bytes
    host: str
    port: int
    flags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CircuitState:
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


class CarriedState(NamedTuple):
    """What a child relays and exits for others: routes open now, bytes since it started."""

    relays: int = 0
    exits: int = 0
    relayed_bytes: int = 0
    exited_bytes: int = 0


NOTHING_CARRIED = CarriedState()


@dataclass(frozen=True, slots=True)
class Snapshot:
    circuits: Mapping[int, CircuitState] = field(default_factory=dict)
    candidates: Mapping[bytes, PeerState] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    carried: CarriedState = NOTHING_CARRIED


_PLAIN_FIELDS = tuple(f.name for f in fields(CircuitState) if f.name not in ("circuit_id", "hops", "unverified_hop"))


def _hop_message(hop: PeerState) -> pb.Hop:
    return pb.Hop(public_key=hop.public_key, address=pb.Address(host=hop.host, port=hop.port), flags=hop.flags)


def _hop_state(hop: pb.Hop) -> PeerState:
    return PeerState(hop.public_key, hop.address.host, hop.address.port, tuple(hop.flags))


class SyncEncoder:
    """Turns snapshots into frames that hold only what changed since the frame before."""

    def __init__(self) -> None:
        self._sent: Snapshot | None = None

    def encode(self, snapshot: Snapshot) -> pb.Sync | None:
        """The next frame, the first one full; None when nothing changed.

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
        return frame if frame.full or frame.ByteSize() else None

    @staticmethod
    def _delta(now: CircuitState, before: CircuitState) -> pb.CircuitDelta:
        changed = {name: getattr(now, name) for name in _PLAIN_FIELDS if getattr(now, name) != getattr(before, name)}
        delta = pb.CircuitDelta(circuit_id=now.circuit_id, **changed)
        if now.hops != before.hops:
            delta.hops.CopyFrom(pb.HopList(hops=[_hop_message(hop) for hop in now.hops]))
        if now.unverified_hop != before.unverified_hop:
            # An empty hop says that there is none any more.
            delta.unverified_hop.CopyFrom(_hop_message(now.unverified_hop) if now.unverified_hop else pb.Hop())
        return delta


class SyncState:
    """The main process' picture of one child, kept by applying its frames in order."""

    def __init__(self) -> None:
        self.circuits: dict[int, CircuitState] = {}
        self.candidates: dict[bytes, PeerState] = {}
        self.counters: dict[str, int] = {}
        self.carried = CarriedState()

    def clear(self) -> None:
        self.circuits.clear()
        self.candidates.clear()
        self.counters.clear()
        self.carried = CarriedState()

    def apply(self, frame: pb.Sync) -> list[int]:
        """Apply one frame; returns the ids of the circuits that it changed."""
        if frame.full:
            self.clear()
        for delta in frame.circuits:
            self.circuits[delta.circuit_id] = self._merge(delta)
        self._apply_candidates(frame.candidates, frame.lost_candidates)
        self.counters.update(frame.counters)
        if frame.HasField("carried"):
            carried = frame.carried
            self.carried = CarriedState(carried.relays, carried.exits, carried.relayed_bytes, carried.exited_bytes)
        return [delta.circuit_id for delta in frame.circuits]

    def forget(self, circuit_id: int) -> None:
        self.circuits.pop(circuit_id, None)

    def _merge(self, delta: pb.CircuitDelta) -> CircuitState:
        before = self.circuits.get(delta.circuit_id, CircuitState(delta.circuit_id))
        values = {
            name: getattr(delta if delta.HasField(name) else before, name)  # type: ignore[arg-type]
            for name in _PLAIN_FIELDS
        }
        hops = tuple(_hop_state(hop) for hop in delta.hops.hops) if delta.HasField("hops") else before.hops
        unverified = before.unverified_hop
        if delta.HasField("unverified_hop"):
            unverified = _hop_state(delta.unverified_hop) if delta.unverified_hop.public_key else None
        return CircuitState(delta.circuit_id, hops=hops, unverified_hop=unverified, **values)

    def _apply_candidates(self, new: Iterable[pb.PeerInfo], lost: Iterable[bytes]) -> None:
        for peer in new:
            self.candidates[peer.public_key] = PeerState(
                peer.public_key, peer.address.host, peer.address.port, tuple(peer.flags)
            )
        for public_key in lost:
            self.candidates.pop(public_key, None)
