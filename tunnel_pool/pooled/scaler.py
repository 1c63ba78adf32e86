"""Keeps the pool as large as it has to be: measures once a second, asks the policy, does what it says."""

import asyncio
import logging
import time

from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, DESTROY_REASON_UNNEEDED, Circuit

from tunnel_pool.overlay.ground.config import MAX_SLOTS, slot_of
from tunnel_pool.overlay.ground.end_to_end import END_TO_END
from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.pool.policy import ChildState, surplus
from tunnel_pool.pool.scaling import SHRINK_AFTER_S, ChildLoad, Drain, End, Grow, Resume, ScalingPolicy, WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.system.measure import CpuMeter

INTERVAL_S = 1.0
QUIET_S = 5.0  # how long a circuit that carries datagrams may pause
TRIMMED_AT_ONCE = 8
FAILED_AGAIN_S = 60.0
QUIET_BYTES_PER_S = 1000  # pings and keep-alives are no more

STARTING_STATES = (ChildState.WAITING, ChildState.STARTING)

logger = logging.getLogger(__name__)


class Scaler:
    """Has the community's pool grow and shrink by a ScalingPolicy."""

    def __init__(self, community: PooledTunnelCommunity, policy: ScalingPolicy, circuits_follow: bool = False) -> None:
        """Scale by the policy; with `circuits_follow`, keep as many circuits as `circuits_for` says."""
        self._community = community
        self._pool = community.pool
        self._policy = policy
        self._circuits_follow = circuits_follow
        self._cpu = CpuMeter()
        self._bytes: dict[int, int] = {}  # by circuit id, the bytes at the last look
        self._next_failed_s = time.monotonic() + FAILED_AGAIN_S
        self._busy = Recent[int](QUIET_S)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        self._task.cancel()

    def set_workers(self, workers: WorkerRange) -> None:
        self._policy.workers = workers

    def drain(self, slot: int) -> None:
        """Drain this child, whatever the others have to do; another follows where the range wants one."""
        logger.info("Child %d is drained, as was asked: nothing new is given to it", slot)
        self._policy.drain(slot, time.monotonic())
        self._community.drain(slot)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._step(time.monotonic())
            except Exception:
                logger.exception("One step of scaling the pool failed; please report it")

    def _step(self, now_s: float) -> None:
        self._note_busy(now_s)
        running = self._loads(ChildState.RUNNING, now_s)
        draining = self._loads(ChildState.DRAINING, now_s)
        self._cpu.forget_all_but({self._pool.pid(slot) for slot in self._pool.working()})
        starting = len(self._pool.in_state(*STARTING_STATES))
        wanted = sum(self._community.wanted_circuits().values())
        match self._policy.decide(now_s, running, draining, starting, wanted):
            case Grow():
                self._grow()
            case Resume(slot):
                logger.info("Child %d is needed after all", slot)
                self._community.resume(slot)
            case Drain(slot):
                logger.info("Child %d is not needed: nothing new is given to it", slot)
                self._community.drain(slot)
            case End(slot, why):
                self._pool.end(slot, why)
        self._trim(now_s)
        if self._circuits_follow:
            self._community.set_max_circuits(circuits_for(len(self._pool.running())))

    def _trim(self, now_s: float) -> None:
        """Remove some idle circuits beyond the wanted number, superfluous since a new child has built its share."""
        quiet_s = time.time() - QUIET_S
        for lane, wanted in self._community.wanted_circuits().items():
            ready: dict[int, list[Circuit]] = {slot: [] for slot in self._pool.running()}
            for circuit in self._community.circuits_for_new_peers(*lane):
                ready[slot_of(circuit.circuit_id)].append(circuit)
            for slot, number in surplus(wanted, {slot: len(circuits) for slot, circuits in ready.items()}).items():
                idle = [c for c in ready[slot] if c.creation_time < quiet_s and not self._busy.has(c.circuit_id, now_s)]
                for circuit in idle[: min(number, TRIMMED_AT_ONCE)]:
                    self._community.remove_circuit(circuit.circuit_id, "not needed", destroy=DESTROY_REASON_UNNEEDED)

    def _grow(self) -> None:
        in_use = self._pool.working() + self._pool.in_state(*STARTING_STATES, ChildState.ENDING)
        # A slot that failed comes last, and not at once: what was wrong may have passed.
        failed = self._pool.in_state(ChildState.FAILED)
        most = self._policy.workers.most
        if self._community.port is not None:  # a child with a shared port need not wait for its predecessor's port
            most = min(MAX_SLOTS, most + len(self._policy.unwanted))
        unused = [slot for slot in range(most) if slot not in in_use and slot not in failed]
        if not unused and time.monotonic() >= self._next_failed_s:
            self._next_failed_s = time.monotonic() + FAILED_AGAIN_S
            unused = failed
        if unused:
            logger.info("Another child is needed: %d is started", unused[0])
            self._pool.open_slots(unused[:1])

    def _note_busy(self, now_s: float) -> None:
        """Note which circuits carry more than what keeps them alive."""
        now = {
            circuit_id: circuit.bytes_up + circuit.bytes_down
            for circuit_id, circuit in self._community.circuits.items()
            if _carries_clients(circuit)
        }
        for circuit_id, carried in now.items():
            if carried - self._bytes.get(circuit_id, 0) > QUIET_BYTES_PER_S * INTERVAL_S:
                self._busy.add(circuit_id, now_s)
        self._bytes = now

    def _loads(self, state: ChildState, now_s: float) -> list[ChildLoad]:
        by_slot: dict[int, list[Circuit]] = {slot: [] for slot in self._pool.in_state(state)}
        for circuit in self._community.circuits.values():
            by_slot.get(slot_of(circuit.circuit_id), []).append(circuit)
        return [
            ChildLoad(
                slot,
                self._cpu.cores(self._pool.pid(slot), now_s),
                circuits=sum(circuit.ctype != CIRCUIT_TYPE_DATA for circuit in circuits),
                busy=sum(self._busy.has(circuit.circuit_id, now_s) for circuit in circuits),
                foreign=len(self._pool.pictures[slot].relays) + len(self._pool.pictures[slot].exits),
            )
            for slot, circuits in by_slot.items()
        ]


class PoolScaling:
    """Keeps the children of a community within a range; a fixed number needs no Scaler until somebody changes it.

    A tunnel_pool.pool.scaling.Scaling.
    """

    def __init__(
        self,
        community: PooledTunnelCommunity,
        workers: WorkerRange,
        circuits_follow: bool = False,
        shrink_after_s: float = SHRINK_AFTER_S,
    ) -> None:
        """Keep so many children of a community that has started, and stop with it."""
        self.workers = workers
        self._community = community
        self._most = MAX_SLOTS if community.port is not None else workers.most
        self._circuits_follow = circuits_follow
        self._shrink_after_s = shrink_after_s
        self._scaler: Scaler | None = None
        community.scaling = self
        if workers.is_elastic:
            self.start()

    def start(self) -> None:
        """Begin to look after the children now, though their number be fixed; do nothing when the pool is ending."""
        if not self._community.pool.stopping:
            self._running()

    def scale(self, workers: WorkerRange) -> None:
        """Keep so many children from now on (tunnel_pool.pool.scaling). Raises ValueError."""
        if workers.most > self._most:
            why = "" if self._community.port is not None else "with a port for each, "
            raise ValueError(f"{why}there may be no more than {self._most}")
        self._running().set_workers(workers)
        self.workers = workers

    def drain(self, slot: int) -> None:
        """Drain this child (tunnel_pool.pool.scaling). Raises ValueError."""
        self._running().drain(slot)

    def stop(self) -> None:
        if self._scaler is not None:
            self._scaler.stop()

    def _running(self) -> Scaler:
        """Return the Scaler, which is started now at the latest. Raises ValueError."""
        if self._community.pool.stopping:
            raise ValueError("the pool is ending")
        if self._scaler is None:
            policy = ScalingPolicy(self.workers, self._shrink_after_s)
            self._scaler = Scaler(self._community, policy, self._circuits_follow)
        return self._scaler


def _carries_clients(circuit: Circuit) -> bool:
    return circuit.ctype in (CIRCUIT_TYPE_DATA, *END_TO_END)


def circuits_for(workers: int) -> int:
    """Return py-ipv8's own maximum of circuits, more when there are more children to give them to."""
    return max(8, 2 * workers)
