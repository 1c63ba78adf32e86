"""The pool: carries out what the policy decides, and keeps each child's picture."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from google.protobuf.message import Message

from tunnel_pool.pool.command import StartMethod, only_for_children
from tunnel_pool.pool.launchers import own_launcher
from tunnel_pool.pool.launching import Descriptors, ProcessEvents, RunningProcess
from tunnel_pool.pool.listener import PoolListener
from tunnel_pool.pool.policy import (
    ALIVE_STATES,
    FINAL_STATES,
    HEARTBEAT_TIMEOUT_S,
    MAX_STARVED_S,
    START_TIMEOUT_S,
    WORKING_STATES,
    ChildState,
    Command,
    Kill,
    PoolPolicy,
    RequestExit,
    SendHeartbeat,
    SlotRecord,
    Spawn,
)
from tunnel_pool.pool.process import CALL_TIMEOUT_S, ChildProcess
from tunnel_pool.pool.program import own_command, own_environment, template_command
from tunnel_pool.pool.run_delay import RunDelay
from tunnel_pool.pool.template import Template
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.errors import RemoteError
from tunnel_pool.rpc.sockets import HasDescriptor, give
from tunnel_pool.rpc.sync import CarriedState, SyncState
from tunnel_pool.system.errors import UserError

TICK_S = 0.1
CALM_TICK_S = 0.25  # while all children work

# Messages of children that the listener hears as they are, by its methods.
FOR_LISTENER = {"stream_guest": "guest_came", "exit_heard": "exit_heard"}

logger = logging.getLogger(__name__)


class ProcessPool:
    """Keeps a child for each open slot, and replaces each when it ends."""

    def __init__(
        self,
        slots: Sequence[int],
        create_message: Callable[[int], pb.Create],
        listener: PoolListener,
        command: Sequence[str] | None = None,
        start_method: StartMethod = StartMethod.SPAWN,
        *,
        nice: int = 0,
    ) -> None:
        """Prepare a pool; `create_message(slot)` returns RPC_CREATE for each child that starts.

        `command` replaces own_command in tests; `nice` is added to our own nice value (nice(7)) for the children.
        """
        self._create_message = create_message
        self._listener = listener
        self._command = list(command) if command is not None else own_command()
        self._environment = only_for_children(own_environment())
        self._start_method = start_method
        self._launcher = own_launcher()
        self._nice = nice
        self._template: Template | None = None
        self._policy = PoolPolicy()
        self._children: dict[int, ChildProcess] = {}
        self._run_delays: dict[int, RunDelay] = {}  # by slot, since the last heartbeat was sent
        self._created: dict[int, pb.Created] = {}
        self._before_restart: dict[int, tuple[Counter[str], CarriedState]] = {}
        self._ready_or_final = asyncio.Event()
        self._all_final = asyncio.Event()
        self._settled = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self.pictures: dict[int, SyncState] = {}
        self.open_slots(slots)

    # What the pool is

    @property
    def records(self) -> Mapping[int, SlotRecord]:
        return self._policy.slots

    @property
    def stopping(self) -> bool:
        """Return whether it was told to stop."""
        return self._policy.stopping

    def running(self) -> list[int]:
        """Return the children that new work is given to."""
        return self.in_state(ChildState.RUNNING)

    def working(self) -> list[int]:
        """Return the slots of the children that run, including those being drained."""
        return self.in_state(*WORKING_STATES)

    def in_state(self, *states: ChildState) -> list[int]:
        return [slot for slot, record in self.records.items() if record.state in states]

    def pid(self, slot: int) -> int | None:
        child = self._children.get(slot)
        return child.pid if child is not None else None

    @property
    def template_pid(self) -> int | None:
        """Return the process that children are forked of, None where there is none."""
        return self._template.pid if self._template is not None else None

    def listen_address(self, slot: int) -> tuple[str, int] | None:
        created = self._created.get(slot)
        return (created.listen.host, created.listen.port) if created is not None else None

    def restarts(self) -> int:
        return sum(record.restarts for record in self.records.values())

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, over all children and their predecessors."""
        total: Counter[str] = Counter()
        for slot, picture in self.pictures.items():
            total.update(picture.counters)
            total.update(self._before_restart.get(slot, (Counter(), None))[0])
            child = self._children.get(slot)
            if child is not None:
                total[DropReason.DATA_STREAM_FULL] += child.datagrams.dropped
        return +total

    def carried(self) -> CarriedState:
        """Return what all children relay and exit for others, their predecessors' bytes included."""
        states = [picture.carried for picture in self.pictures.values()]
        past = [carried for _, carried in self._before_restart.values()]
        return reduce(CarriedState.plus, [*states, *past], CarriedState())

    # Its life

    async def start(self) -> None:
        """Return when the first child is ready. Raises UserError when none can start, saying why.

        Whatever happens, `stop` is still to be called.
        """
        if self._start_method is StartMethod.FORKSERVER:
            try:
                self._template = Template(template_command(), self._environment, self._launcher, self._tick, self._nice)
            except OSError as error:
                raise UserError(f"the start method forkserver does not work here: {error.strerror}") from None
        self._tick()
        await self._ready_or_final.wait()
        if not self.running() and (why := self.failure()):
            raise UserError(why)

    async def all_settled(self) -> None:
        """Return when every slot's child runs or has been given up."""
        await self._settled.wait()

    async def stop(self) -> None:
        """Ask every child to end, kill those that don't, return when all are gone."""
        self._policy.stop(time.monotonic())
        self._tick()
        await self._all_final.wait()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._template is not None:
            await self._template.stop()

    def open_slots(self, slots: Iterable[int]) -> None:
        """Keep a child in each of these slots, too, from now on."""
        self._policy.open_slots(slots, time.monotonic())
        for slot in slots:
            self.pictures.setdefault(slot, SyncState())

    def drain(self, slot: int) -> None:
        """Give the child no new work from now on, and don't replace it."""
        self._policy.drain(slot, time.monotonic())

    def resume(self, slot: int) -> None:
        """Give work again to a child that is being drained."""
        self._policy.resume(slot, time.monotonic())

    def end(self, slot: int, why: str) -> None:
        """End the child in order."""
        if (command := self._policy.end(slot, why, time.monotonic())) is not None:
            self._perform(command)

    def failure(self) -> str | None:
        """Return why no child can work any more, None while one can."""
        records = [record for record in self.records.values() if record.state is not ChildState.STOPPED]
        if records and all(record.state is ChildState.FAILED for record in records):
            return records[0].why
        return None

    def call(self, slot: int, name: str, message: Message, timeout_s: float = CALL_TIMEOUT_S) -> "asyncio.Future[Any]":
        """Call a child; the future ends with its result or a CallError."""
        return self._children[slot].call(name, message, timeout_s)

    def tell(self, slot: int, name: str, message: Message) -> "asyncio.Future[Any]":
        """Call a child without waiting; a failure is nothing to the caller: the child is gone then, or will be."""
        told = self.call(slot, name, message)
        told.add_done_callback(lambda future: future.exception())
        return told

    async def told(self) -> None:
        """Wait until every working child has sent its changes (RPC_SYNC)."""
        calls = [self.call(slot, "heartbeat", pb.Heartbeat(tell=True)) for slot in self.working()]
        await asyncio.gather(*calls, return_exceptions=True)

    def send_datagram(self, slot: int, circuit_id: int, address: bytes, payload: bytes) -> bool:
        child = self._children.get(slot)
        return child is not None and child.datagrams.send(circuit_id, address, payload)

    def give(self, slot: int, what: int, file: HasDescriptor) -> None:
        """Hand a child a socket or memory, which it takes when a call needs it (rpc/sockets.py). Raises OSError."""
        give(self._children[slot].sockets, what, file)

    # Deciding and doing

    def _tick(self) -> None:
        """Carry out what the policy decides; schedule the next tick first, so that a listener's error can't stop it."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now_s = time.monotonic()
        for child in self._children.values():
            child.expire_calls(now_s)
        template = self._template
        if template is not None and template.failure is not None:
            self._policy.give_up(template.failure, now_s)
        may_spawn = template is None or template.is_ready
        for command in self._policy.decide(now_s, may_spawn, self._starved_s):
            self._perform(command)
        states = {record.state for record in self.records.values()}
        if states <= FINAL_STATES or ChildState.RUNNING in states:
            self._ready_or_final.set()
        if states <= FINAL_STATES | WORKING_STATES:
            self._settled.set()
        if not states & (ALIVE_STATES | {ChildState.WAITING}):
            self._all_final.set()
        if states <= FINAL_STATES | WORKING_STATES:
            self._ticker.cancel()
            self._ticker = asyncio.get_running_loop().call_later(CALM_TICK_S, self._tick)

    def _perform(self, command: Command) -> None:
        child = self._children.get(command.slot)
        match command:
            case Spawn(slot):
                self._spawn(slot)
            case SendHeartbeat() if child is not None:
                self._send_heartbeat(child)
            case RequestExit(slot, reason) if child is not None:
                level = logging.WARNING if self._is_needed(slot) else logging.INFO
                logger.log(logging.DEBUG if self._policy.stopping else level, "Child %d is stopped: %s", slot, reason)
                child.request_exit(reason)
                self._listener.child_gone(slot, reason)
            case Kill() if child is not None:
                child.kill()

    def _is_needed(self, slot: int) -> bool:
        """Return whether the pool still needs this slot's child: it runs on, and the child was not drained."""
        return not self._policy.stopping and not self.records[slot].unwanted

    def _spawn(self, slot: int) -> None:
        child = ChildProcess(slot, self, asyncio.get_running_loop(), self._nice)
        try:
            child.start(self._template.fork if self._template is not None else self._launch)
        except OSError as error:
            self._policy.ended(slot, f"cannot start a process: {error.strerror or error}", time.monotonic())
            return
        self._children[slot] = child
        alive = child.call("heartbeat", pb.Heartbeat(), START_TIMEOUT_S)
        alive.add_done_callback(lambda future: self._on_alive(child, future))

    def _launch(self, descriptors: Descriptors, events: ProcessEvents) -> RunningProcess:
        return self._launcher.launch(self._command, self._environment, descriptors, events)

    def _on_alive(self, child: ChildProcess, future: "asyncio.Future[pb.HeartbeatReply]") -> None:
        """Send RPC_CREATE, with key and sockets, to a child that has answered: that one dies with us, even if stopped.

        A child that was stopped (SIGSTOP) before it answered would keep the node's port after this process was killed.
        """
        if future.exception() is not None:
            self._on_created(child, future)
        elif self._children.get(child.slot) is child and self.records[child.slot].state is ChildState.STARTING:
            created = child.call("create", self._create_message(child.slot), START_TIMEOUT_S)
            created.add_done_callback(lambda future: self._on_created(child, future))

    def _on_created(self, child: ChildProcess, future: "asyncio.Future[Any]") -> None:
        error = future.exception()
        if self._children.get(child.slot) is not child:
            return
        if error is None:
            self._created[child.slot] = future.result()
            self._policy.created(child.slot, time.monotonic())
            self._listener.child_ready(child.slot)
        elif isinstance(error, RemoteError):
            if error.code == pb.ERROR_CANNOT_START:
                self._policy.cannot_start(child.slot, error.args[0])
            self.child_lost(child, str(error.args[0]))
        self._tick()

    def _starved_s(self, slot: int) -> float:
        delay = self._run_delays.get(slot)
        return delay.waited_s() if delay is not None else 0.0

    def _send_heartbeat(self, child: ChildProcess) -> None:
        def answered(future: "asyncio.Future[pb.HeartbeatReply]") -> None:
            if future.exception() is None and self._children.get(child.slot) is child:
                self._policy.heartbeat_answered(child.slot, time.monotonic())

        self._run_delays[child.slot] = RunDelay(child.pid)
        child.call("heartbeat", pb.Heartbeat(), HEARTBEAT_TIMEOUT_S + MAX_STARVED_S).add_done_callback(answered)

    # What the children tell (ChildListener)

    def child_notified(self, child: ChildProcess, name: str, message: Any) -> None:
        if self._children.get(child.slot) is not child or self.records[child.slot].state is ChildState.ENDING:
            return
        picture = self.pictures[child.slot]
        if name == "sync":
            self._listener.circuits_changed(child.slot, picture.apply(message))
            if message.swarms:
                self._listener.swarms_changed(child.slot, [swarm.infohash for swarm in message.swarms])
            if message.full or message.candidates or message.lost_candidates:
                self._listener.candidates_changed()
            if message.full or message.exits or message.lost_exits:
                self._listener.routes_changed(child.slot)
        elif name == "circuit_dead":
            picture.forget(message.circuit_id)
            self._listener.circuit_died(child.slot, message)
        elif name == "orphans":
            self._listener.orphaned(child.slot, message)
        elif name in FOR_LISTENER:
            getattr(self._listener, FOR_LISTENER[name])(message)
        elif name == "notify":
            level = logging.WARNING if message.level == pb.Notify.WARNING else logging.INFO
            logger.log(level, "child %d: %s", child.slot, message.text)

    async def child_called(self, child: ChildProcess, name: str, message: Any) -> Message:
        return await self._listener.called(child.slot, name, message)

    def child_sent_datagram(self, child: ChildProcess, circuit_id: int, address: bytes, payload: bytes) -> None:
        self._listener.datagram_received(child.slot, circuit_id, address, payload)

    def child_lost(self, child: ChildProcess, why: str) -> None:
        if self._children.get(child.slot) is child:
            self.end(child.slot, why)

    def child_ended(self, child: ChildProcess, how: str) -> None:
        record = self.records[child.slot]
        expected = record.state is ChildState.ENDING
        self._remember(child)
        self._policy.ended(child.slot, how, time.monotonic())
        del self._children[child.slot]
        self._run_delays.pop(child.slot, None)
        self._created.pop(child.slot, None)
        if self._is_needed(child.slot):
            outcome = "given up" if record.state is ChildState.FAILED else "replaced"
            logger.warning("Child %d (pid %d) ended and is %s: %s", child.slot, child.pid, outcome, record.why or how)
        if not expected:
            self._listener.child_gone(child.slot, how)
        self._tick()

    def _remember(self, child: ChildProcess) -> None:
        """Add the child's totals to those of its slot, so that counters don't restart at 0 with its successor."""
        counters, carried = self._before_restart.get(child.slot, (Counter(), CarriedState()))
        picture = self.pictures[child.slot]
        counters.update(picture.counters)
        counters[DropReason.DATA_STREAM_FULL] += child.datagrams.dropped
        carried = carried.plus(picture.carried.ended())
        self._before_restart[child.slot] = (counters, carried)
        picture.clear()
        self._listener.candidates_changed()
        self._listener.routes_changed(child.slot)
