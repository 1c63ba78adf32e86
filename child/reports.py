"""What a child tells the main process unasked: its circuits and counters by syncs, and events."""

import asyncio

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.child.control import ControlStream
from tunnel_pool.child.data_path import DataPath
from tunnel_pool.child.snapshot import take_snapshot
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import Guest
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.sync import SyncEncoder

MIN_SYNC_INTERVAL_S = 0.05
IDLE_SYNC_INTERVAL_S = 1.0  # reached by doubling while nothing changes
ROUTES_INTERVAL_S = 1.0  # circuits of others and our swarms are told of less often: nobody waits for them
ROUTES_A_SECOND = 400  # the most of them that one second may tell of
MAX_ROUTES_INTERVAL_S = 5.0
ORPHANS_PER_EVENT = 1024


class Reports:
    """Tells the main process of a community: at once of what can't wait, and of the rest by a sync now and then."""

    def __init__(
        self, control: ControlStream, community: LocalTunnelCommunity, data_path: DataPath, sync_interval_s: float
    ) -> None:
        """Sync now, and every `sync_interval_s` from then on, less often while nothing changes."""
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._community = community
        self._data_path = data_path
        self._encoder = SyncEncoder()
        self._loop_delay_s = 0.0
        self._next_routes_s = 0.0
        self._guests: list[pb.StreamGuest] = []  # those that the main process has not been told of
        self._sync_interval_s = max(sync_interval_s, MIN_SYNC_INTERVAL_S)
        self._pause_s = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        community.on_circuit_removed = self._on_circuit_removed
        community.on_orphans = self._on_orphans
        community.on_guest = self._on_guest
        community.on_exit_heard = self._on_exit_heard
        community.on_exit_doubted = self._on_exit_doubted
        community.on_changed = self._sync_soon
        self._tick(self._loop.time())

    def end(self) -> None:
        """Sync no more."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def warn(self, text: str) -> None:
        """Tell of what the main process is to log."""
        self._control.send_event("notify", pb.Notify(level=pb.Notify.WARNING, text=text))

    def heartbeat(self, tell: bool) -> float:
        """Sync now if that was due soon or is asked for; return by how many seconds the last sync was late."""
        is_soon = self._ticker is not None and self._ticker.when() - self._loop.time() < IDLE_SYNC_INTERVAL_S / 2
        if self._ticker is not None and (tell or is_soon):
            due_s = self._ticker.when()
            self._ticker.cancel()  # awake already: an idle child wakes up once a second, not twice
            self._tick(due_s)
        return self._loop_delay_s

    def _tick(self, due_s: float) -> None:
        """Sync, then schedule the next tick: soon while something changes, less and less often while nothing does."""
        now_s = self._loop.time()
        self._loop_delay_s = max(0.0, now_s - due_s)
        lively = self._sync() or self._community.is_building()
        self._community.look_after_circuits()
        self._pause_s = self._sync_interval_s if lively else min(2 * self._pause_s, IDLE_SYNC_INTERVAL_S)
        self._schedule_tick(now_s + self._pause_s)

    def _schedule_tick(self, due_s: float) -> None:
        self._ticker = self._loop.call_at(due_s, self._tick, due_s)

    def _sync_soon(self) -> None:
        """Sync in a moment: the main process waits for something, and more is likely to come."""
        due_s = self._loop.time() + MIN_SYNC_INTERVAL_S
        if self._ticker is not None and self._ticker.when() > due_s:
            self._ticker.cancel()
            self._schedule_tick(due_s)

    def _sync(self) -> bool:
        """Send what changed, unless the last frame is not written yet: then the next frame carries the changes, too.

        Returns whether to sync again soon: a frame waits, or circuits, candidates or swarms changed.
        """
        if self._control.unsent_bytes:
            return True
        now_s = self._loop.time()
        with_routes = now_s >= self._next_routes_s
        if with_routes:
            routes = len(self._community.relay_from_to) + len(self._community.exit_sockets)
            interval_s = max(ROUTES_INTERVAL_S, min(routes / ROUTES_A_SECOND, MAX_ROUTES_INTERVAL_S))
            self._next_routes_s = now_s + interval_s
        frame = self._encoder.encode(take_snapshot(self._community, self._data_path.counters(), with_routes))
        if frame is not None:
            self._control.send_event("sync", frame)
        for guest in self._guests:
            self._control.send_event("stream_guest", guest)
        self._guests.clear()
        return frame is not None and bool(
            frame.full or frame.circuits or frame.candidates or frame.lost_candidates or frame.swarms
        )

    def _on_orphans(self, lane: Lane, destinations: list[bytes]) -> None:
        for start in range(0, len(destinations), ORPHANS_PER_EVENT):
            some = destinations[start : start + ORPHANS_PER_EVENT]
            self._control.send_event("orphans", pb.Orphans(**lane._asdict(), destinations=some))

    def _on_exit_heard(self, mid: bytes, answered: bool) -> None:
        self._control.send_event("exit_heard", pb.ExitHeard(mid=mid, answered=answered))

    def _on_exit_doubted(self, mid: bytes) -> None:
        self._control.send_event("exit_heard", pb.ExitHeard(mid=mid, doubted=True))

    def _on_guest(self, guest: Guest) -> None:
        """Tell of a guest with the next sync: the main process lets nobody in over a circuit that it does not know."""
        message = pb.StreamGuest(circuit_id=guest.circuit.circuit_id, known_as=guest.known_as, infohash=guest.infohash)
        self._guests.append(message)
        self._sync_soon()

    def _on_circuit_removed(self, circuit: Circuit, reason: str) -> None:
        self._data_path.circuit_removed(circuit.circuit_id)
        self._control.send_event(
            "circuit_dead",
            pb.CircuitDead(
                circuit_id=circuit.circuit_id,
                reason=reason,
                bytes_up=circuit.bytes_up,
                bytes_down=circuit.bytes_down,
            ),
        )
