"""Decides when to spawn, question, stop and replace children. Pure: events and times in, commands out.

WAITING --spawn--> STARTING --created--> RUNNING <--drain, resume--> DRAINING
   ^                  |                     |                           |
   |                  +-- too long ---------+-- hangs, told to stop ----+
   |                  v                     v                           |
   +--- ended ----- ENDING <----------------+---------------------------+
   |                  +-- ended, and told to stop or drained ---> STOPPED
   +--> FAILED: it says that it cannot start, or MAX_START_FAILURES starts failed,
                    before a child of the slot ever was RUNNING
After a child that dies by itself, its slot is WAITING as after one that has ended. A slot that waits is STOPPED at once
when the pool is, and FAILED when all slots are given up. A STOPPED or FAILED slot of a pool that goes on is WAITING
again when it is opened anew.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tunnel_pool.overlay.ground.pacing import doubled_s

START_TIMEOUT_S = 30.0
HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_TIMEOUT_S = 4.0
MAX_STARVED_S = 30.0  # how long a child that gets no core is waited for
EXIT_GRACE_S = 1.5
OWN_DELAY_S = 0.5  # the longest time between two decisions; beyond it the main process was busy or asleep
FIRST_RESTART_DELAY_S = 0.25
MAX_RESTART_DELAY_S = 30.0
STABLE_S = 30.0
MAX_START_FAILURES = 5


class ChildState(Enum):
    WAITING = auto()  # to be spawned when its delay is over
    STARTING = auto()  # spawned, RPC_CREATE not answered yet
    RUNNING = auto()
    DRAINING = auto()  # it works as before, but nothing new is given to it
    ENDING = auto()  # asked to end
    STOPPED = auto()
    FAILED = auto()


WORKING_STATES = frozenset({ChildState.RUNNING, ChildState.DRAINING})
ALIVE_STATES = WORKING_STATES | {ChildState.STARTING, ChildState.ENDING}
FINAL_STATES = frozenset({ChildState.STOPPED, ChildState.FAILED})


Starved = Callable[[int], float]
"""Returns for how many seconds a slot's child could have run and got no core since the last heartbeat was sent."""


@dataclass(frozen=True, slots=True)
class Spawn:
    slot: int


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    slot: int


@dataclass(frozen=True, slots=True)
class RequestExit:
    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    slot: int


Command = Spawn | SendHeartbeat | RequestExit | Kill


@dataclass(slots=True)
class SlotRecord:
    """One place in the pool and the child that holds it."""

    slot: int
    state: ChildState = ChildState.WAITING
    since_s: float = 0.0
    spawn_at_s: float = 0.0
    spawned_at_s: float = 0.0
    heartbeat_due_s: float = 0.0
    heartbeat_sent_s: float | None = None
    ready: bool = False  # whether this child ever got to RUNNING
    proven: bool = False  # whether any child of this slot did: then failed starts are retried without end
    start_failures: int = 0
    quick_deaths: int = 0
    restarts: int = 0
    killed: bool = False
    unwanted: bool = False  # it was drained, so that nobody replaces it
    why: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """Measures what a child carries now; fewer circuits count first, then fewer bytes."""

    circuits: int
    carried_bytes: int
    slot: int


def least_loaded(loads: Iterable[Load]) -> int | None:
    """Return the slot that builds the next circuit, None when there is no child for it."""
    least = min(loads, default=None)
    return None if least is None else least.slot


def share_out(wanted: int, have: Mapping[int, int], expected: int) -> list[int]:
    """Return the slots that build the missing circuits, one entry a circuit, so that all `wanted` are spread evenly.

    `have` maps each child that can build now, at least one, to its number of circuits. `expected` more children
    can build soon; their shares are left for them. A child that joins when the others already have all circuits
    builds its share nevertheless, as it would be idle otherwise.
    """
    count = dict(have)
    children = len(have) + expected
    chosen: list[int] = []
    while True:
        least = min(count, key=lambda slot: (count[slot], slot))
        is_owed = count[least] < wanted // children
        is_missing = sum(count.values()) < wanted and count[least] < -(-wanted // children)
        if not is_owed and not is_missing:
            return chosen
        chosen.append(least)
        count[least] += 1


def surplus(wanted: int, have: Mapping[int, int]) -> dict[int, int]:
    """Return how many circuits each child has beyond its share, where there are more than are wanted."""
    count = dict(have)
    share = -(-wanted // max(len(have), 1))
    for _ in range(sum(have.values()) - wanted):
        most = max(count, key=lambda slot: (count[slot], slot))
        if count[most] <= share:
            break
        count[most] -= 1
    return {slot: have[slot] - left for slot, left in count.items() if left < have[slot]}


def restart_delay_s(quick_deaths: int) -> float:
    """Return a delay that doubles with each death soon after the start."""
    return doubled_s(FIRST_RESTART_DELAY_S, quick_deaths, MAX_RESTART_DELAY_S)


@dataclass
class PoolPolicy:
    """Decides for every slot. Report what happened by the past-tense methods, then carry out `decide`."""

    slots: dict[int, SlotRecord] = field(default_factory=dict)
    stopping: bool = False
    decided_s: float | None = None

    def open_slots(self, slots: Iterable[int], now_s: float) -> None:
        """Have a child in each of these, which are new, STOPPED or FAILED."""
        for slot in slots:
            before = self.slots.get(slot, SlotRecord(slot))
            state = ChildState.STOPPED if self.stopping else ChildState.WAITING
            self.slots[slot] = SlotRecord(
                slot, state, now_s, spawn_at_s=now_s, proven=before.proven, restarts=before.restarts
            )

    def drain(self, slot: int, now_s: float) -> None:
        """Drain a running child: it gets no new work, and no child replaces it when it ends."""
        record = self.slots[slot]
        if record.state is ChildState.RUNNING:
            record.unwanted = True
            self._change_state(record, ChildState.DRAINING, now_s)

    def resume(self, slot: int, now_s: float) -> None:
        """Give work again to a child that is being drained."""
        record = self.slots[slot]
        if record.state is ChildState.DRAINING:
            record.unwanted = False
            self._change_state(record, ChildState.RUNNING, now_s)

    def give_up(self, why: str, now_s: float) -> None:
        """Fail every slot that waits for a child, for the reason `why`: no child can be started any more."""
        for record in self.slots.values():
            if record.state is ChildState.WAITING:
                record.why = why
                self._change_state(record, ChildState.FAILED, now_s)

    def decide(self, now_s: float, may_spawn: bool = True, starved_s: Starved = lambda slot: 0.0) -> list[Command]:
        """Return what to do now; each command is returned once and recorded as done.

        Call it often. After OWN_DELAY_S or more without a call, pending heartbeats get
        that much more time: their answers may have waited unread in this process.
        A child that got no core has as much more time, up to MAX_STARVED_S.
        """
        self._forgive_our_own_delay(now_s)
        commands = []
        for record in self.slots.values():
            command = self._decide_slot(record, now_s, may_spawn, starved_s)
            if command is not None:
                commands.append(command)
        return commands

    def stop(self, now_s: float) -> None:
        """End children from now on, and start none."""
        self.stopping = True
        for record in self.slots.values():
            if record.state is ChildState.WAITING:
                self._change_state(record, ChildState.STOPPED, now_s)

    def created(self, slot: int, now_s: float) -> None:
        record = self.slots[slot]
        if record.state is ChildState.STARTING:
            record.start_failures = 0
            record.ready = record.proven = True
            record.heartbeat_due_s = now_s + HEARTBEAT_INTERVAL_S
            self._change_state(record, ChildState.RUNNING, now_s)

    def cannot_start(self, slot: int, why: str) -> None:
        """Note that the child reports that it can't work as configured; a slot that never ran is then not retried."""
        record = self.slots[slot]
        record.start_failures = MAX_START_FAILURES
        record.why = why

    def heartbeat_answered(self, slot: int, now_s: float) -> None:
        record = self.slots[slot]
        record.heartbeat_sent_s = None
        record.heartbeat_due_s = now_s + HEARTBEAT_INTERVAL_S

    def end(self, slot: int, why: str, now_s: float) -> RequestExit | None:
        """Return the command that ends a broken or drained child; None when it is ending already, or gone."""
        record = self.slots[slot]
        if record.state not in ALIVE_STATES or record.state is ChildState.ENDING:
            return None
        return self._request_exit(record, why, now_s)

    def ended(self, slot: int, how: str, now_s: float) -> None:
        """Note that the process is gone."""
        record = self.slots[slot]
        quick = now_s - record.spawned_at_s < STABLE_S
        record.quick_deaths = record.quick_deaths + 1 if quick else 0
        if not record.ready:
            record.start_failures += 1
        record.why = record.why or how
        if self.stopping or record.unwanted:
            self._change_state(record, ChildState.STOPPED, now_s)
        elif record.start_failures >= MAX_START_FAILURES and not record.proven:
            self._change_state(record, ChildState.FAILED, now_s)
        else:
            record.restarts += 1
            record.spawn_at_s = now_s + restart_delay_s(record.quick_deaths)
            self._change_state(record, ChildState.WAITING, now_s)

    def _forgive_our_own_delay(self, now_s: float) -> None:
        delay_s = 0.0 if self.decided_s is None else now_s - self.decided_s
        self.decided_s = now_s
        if delay_s >= OWN_DELAY_S:
            for record in self.slots.values():
                if record.heartbeat_sent_s is not None:
                    record.heartbeat_sent_s += delay_s

    def _decide_slot(self, record: SlotRecord, now_s: float, may_spawn: bool, starved_s: Starved) -> Command | None:
        match record.state:
            case ChildState.WAITING if may_spawn and now_s >= record.spawn_at_s:
                return self._spawn(record, now_s)
            case ChildState.STARTING | ChildState.RUNNING | ChildState.DRAINING if self.stopping:
                return self._request_exit(record, "the pool stops", now_s)
            case ChildState.STARTING if now_s - record.since_s >= START_TIMEOUT_S:
                return self._request_exit(record, f"not ready {START_TIMEOUT_S:.0f} s after its start", now_s)
            case ChildState.RUNNING | ChildState.DRAINING:
                return self._question(record, now_s, starved_s)
            case ChildState.ENDING if not record.killed and now_s - record.since_s >= EXIT_GRACE_S:
                record.killed = True
                return Kill(record.slot)
        return None

    def _spawn(self, record: SlotRecord, now_s: float) -> Spawn:
        record.spawned_at_s = now_s
        record.heartbeat_sent_s = None
        record.killed = record.ready = False
        record.why = ""
        self._change_state(record, ChildState.STARTING, now_s)
        return Spawn(record.slot)

    def _question(self, record: SlotRecord, now_s: float, starved_s: Starved) -> Command | None:
        if record.heartbeat_sent_s is not None:
            overdue_s = now_s - record.heartbeat_sent_s - HEARTBEAT_TIMEOUT_S
            if overdue_s >= 0 and overdue_s >= min(starved_s(record.slot), MAX_STARVED_S):
                return self._request_exit(record, f"no heartbeat for {HEARTBEAT_TIMEOUT_S:.0f} s", now_s)
            return None
        if now_s < record.heartbeat_due_s:
            return None
        record.heartbeat_sent_s = now_s
        return SendHeartbeat(record.slot)

    def _request_exit(self, record: SlotRecord, why: str, now_s: float) -> RequestExit:
        record.why = record.why or why
        self._change_state(record, ChildState.ENDING, now_s)
        return RequestExit(record.slot, why)

    @staticmethod
    def _change_state(record: SlotRecord, state: ChildState, now_s: float) -> None:
        record.state = state
        record.since_s = now_s
