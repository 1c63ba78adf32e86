"""The pool's children read the associations of SOCKS5 clients instead of the main process."""

import asyncio
import logging
import socket
import time
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.end_to_end import steering_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.messages import address_message
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.overlay.ground.streams import that_reach
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pooled.stream_placement import StreamPlacement
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.errors import CallError
from tunnel_pool.socks5.address import Socks5Address, encode_address
from tunnel_pool.socks5.carrier import OnLost
from tunnel_pool.socks5.messages import join_udp_request
from tunnel_pool.socks5.server import Association, new_id
from tunnel_pool.socks5.steering import MAX_PINS, BucketTable, bucket_of, is_end_address, program
from tunnel_pool.steering.bpf import ret
from tunnel_pool.steering.group import ReusePortGroup
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot

GATHER_S = 0.1  # how long a new association waits for all children, so that its peers are spread at once
ASK_AGAIN_S = 5.0
MAX_WAITING = 256  # the most datagrams of an association that wait for a child to serve it

logger = logging.getLogger(__name__)


class Children(Protocol):
    """The part of PooledTunnelCommunity that is asked here."""

    pool: ProcessPool
    circuits: dict[int, Circuit]
    watchers: list[Callable[[], None]]
    placement: StreamPlacement

    def slots_with_circuits(self, lane: Lane) -> set[int]: ...


class _Steered:
    """Holds one association and the children that serve it."""

    def __init__(self, association: Association, group: ReusePortGroup) -> None:
        self.association = association
        self.group = group
        self.table = BucketTable(turn=association.id)
        self.asked: dict[int, int] = {}  # slot: pid of the child that was asked to serve
        self.serving: dict[int, int] = {}  # slot: pid of the child that does
        self.refused_until_s: dict[int, float] = {}  # slot: when to ask again
        self.steers = True
        self.waiting: list[tuple[bytes, bytes]] = []
        self.pins = Newest[bytes, int](MAX_PINS)  # circuit, by encoded address, of those in buckets of other children
        self.gather_until_s = time.monotonic() + GATHER_S


class SteeredCarrier:
    """Lets each child that has circuits read its share of the association's port (tunnel_pool.socks5.carrier)."""

    def __init__(self, children: Children, lane: Lane, on_lost: OnLost, announced: bool = False) -> None:
        """Leave questions to trackers and DHT nodes to the server, when the lane is `announced`."""
        self.drops: Counter[str] = Counter()
        self._children = children
        self._pool = children.pool
        self._lane = lane
        self._on_lost = on_lost
        self._announced = announced
        self._steered: dict[int, _Steered] = {}
        self._usual = 0  # the id of the association that gets what nobody asked for; 0: none does
        children.watchers.append(self._update)

    def opened(self, association: Association) -> None:
        if association.group is not None:
            self._steered[association.id] = _Steered(association, association.group)
            self._update()
            asyncio.get_running_loop().call_later(GATHER_S, self._update)

    def usual(self, association: Association) -> None:
        self._usual = association.id
        for slot in self._steered[association.id].serving if association.id in self._steered else ():
            self._tell_usual(slot)

    def _tell_usual(self, slot: int) -> None:
        self._pool.tell(slot, "set_usual", pb.SetUsual(association_id=self._usual))

    def take(self, association: Association, address: bytes, payload: bytes) -> bool:
        steered = self._steered.get(association.id)
        if steered is None or not steered.steers:
            return False
        if is_end_address(address):
            return False  # such datagrams come here only until the circuit's child serves the association
        if not steered.serving and time.monotonic() > steered.gather_until_s:
            return False
        self._assign(steered, address, payload)
        return True

    async def pin(self, association: Association, address: bytes, circuit_id: int) -> bool:
        steered, slot = self._steered.get(association.id), slot_of(circuit_id)
        if steered is None or not steered.steers or slot not in steered.serving:
            return False
        message = pb.Pin(association_id=association.id, destination=address, circuit_id=circuit_id)
        try:
            await self._pool.call(slot, "pin", message)
        except (CallError, KeyError):
            return False
        steered.pins.pop(address, None)
        if not steered.table.claim(bucket_of(address), slot):
            steered.pins[address] = circuit_id
        self._attach_program(steered)
        return True

    def closed(self, association: Association) -> None:
        steered = self._steered.pop(association.id, None)
        if steered is not None:
            for slot in steered.asked:
                if slot in self._pool.working():
                    message = pb.Dissociate(association_id=association.id)
                    self._pool.tell(slot, "dissociate", message)

    def has_streams(self, address: Socks5Address) -> bool:
        return bool(that_reach(self._children.circuits.values(), self._lane, address))

    def open_stream(self, sock: socket.socket, address: Socks5Address, early: bytes) -> None:
        reaching = that_reach(self._children.circuits.values(), self._lane, address)
        running = set(self._pool.running())
        # A child that is being drained carries what nobody else can: the other end of its circuit.
        able = [circuit for circuit in reaching if slot_of(circuit.circuit_id) in running] or reaching
        with sock:
            try:
                circuits = self._children.circuits.values()
                slot = self._children.placement.choose(self._lane, able, circuits, time.monotonic())
                destination = encode_address(address.host, address.port)
                message = pb.OpenStream(
                    stream_id=new_id(), **self._lane._asdict(), destination=destination, early=early
                )
                self._pool.give(slot, message.stream_id, sock)
            except (IndexError, KeyError, OSError):  # the child, or its circuit, has just gone, or it has no time
                self.drops[DropReason.STREAM_NO_CIRCUIT] += 1
                return
        self._pool.tell(slot, "open_stream", message)

    def end(self) -> None:
        self._children.watchers.remove(self._update)

    def _assign(self, steered: _Steered, address: bytes, payload: bytes) -> None:
        """Hand this datagram to the child that has its bucket; if nobody has it, a child is chosen first."""
        bucket = bucket_of(address)
        before = steered.table.owners[bucket]
        slot = steered.table.owner(bucket)
        if slot is None:
            if len(steered.waiting) < MAX_WAITING and len(steered.serving) < len(steered.asked):
                steered.waiting.append((address, payload))
            else:
                self.drops[DropReason.NO_CIRCUIT] += 1
            return
        if before is None:
            self._attach_program(steered)
        message = pb.Steer(association_id=steered.association.id, datagram=join_udp_request(address, payload))
        self._pool.call(slot, "steer", message).add_done_callback(self._steer_answered)

    def _steer_answered(self, future: "Future[pb.Steered]") -> None:
        if future.exception() is not None:
            self.drops[DropReason.STEER_FAILED] += 1

    def _update(self) -> None:
        """Let the children serve that can, and no others, after the pool has changed."""
        pids = {slot: self._pool.pid(slot) or 0 for slot in self._pool.working()}
        with_circuits = self._children.slots_with_circuits(self._lane)
        for steered in [steered for steered in self._steered.values() if steered.steers]:
            self._forget_gone(steered, pids)
            circuits = self._children.circuits
            for address in [address for address, id_ in steered.pins.items() if id_ not in circuits]:
                del steered.pins[address]
            for slot, pid in pids.items():
                if steered.asked.get(slot) != pid and steered.refused_until_s.get(slot, 0) <= time.monotonic():
                    self._ask(steered, slot, pid)
            if len(steered.serving) < len(steered.asked) and time.monotonic() < steered.gather_until_s:
                continue
            moved = steered.table.set_eligible(with_circuits.intersection(steered.serving))
            if moved:
                self._attach_program(steered)
                self._on_lost(partial(_has_moved, moved, dict(steered.pins)))
            waiting, steered.waiting = steered.waiting, []
            for address, payload in waiting:
                self._assign(steered, address, payload)

    def _forget_gone(self, steered: _Steered, pids: dict[int, int]) -> None:
        for slot in [slot for slot, pid in steered.asked.items() if pids.get(slot) != pid]:
            del steered.asked[slot]
            steered.serving.pop(slot, None)
            if socket_of_slot(slot) < len(steered.group.sockets):
                self.drops[DropReason.STEERED_TO_THE_DEAD] += steered.group.discard(socket_of_slot(slot))

    def _ask(self, steered: _Steered, slot: int, pid: int) -> None:
        """Ask the child to serve the association, and give it the socket of its slot."""
        steered.asked[slot] = pid
        association = steered.association
        try:
            while len(steered.group.sockets) <= socket_of_slot(slot):
                steered.group.add()
            self._pool.give(slot, association.id, steered.group.sockets[socket_of_slot(slot)])
        except OSError as error:
            self._refused(steered, slot, str(error.strerror))
            return
        assert association.client is not None
        client = address_message(association.client)
        message = pb.Associate(association_id=association.id, **self._lane._asdict(), client=client)

        def answered(future: "Future[pb.Associated]") -> None:
            error = future.exception()
            if self._steered.get(association.id) is not steered:
                return  # the association was closed meanwhile
            if isinstance(error, CallError):
                self._refused(steered, slot, str(error))
            elif steered.asked.get(slot) == pid:
                steered.serving[slot] = pid
                if association.id == self._usual:
                    self._tell_usual(slot)
                self._attach_program(steered)
                self._update()

        self._pool.call(slot, "associate", message).add_done_callback(answered)

    @staticmethod
    def _refused(steered: _Steered, slot: int, why: str) -> None:
        """Note that a child can't serve; `_update` asks it again in a while."""
        logger.info("Child %d does not serve a client directly: %s", slot, why)
        steered.asked.pop(slot, None)
        steered.refused_until_s[slot] = time.monotonic() + ASK_AGAIN_S

    def _attach_program(self, steered: _Steered) -> None:
        if self._steered.get(steered.association.id) is not steered:
            return  # the association was closed meanwhile, and its sockets with it
        owners = steered.table.owners
        indexes = [OWN_SOCKET if owner is None else socket_of_slot(owner) for owner in owners]
        pins = {address: socket_of_slot(slot_of(id_)) for address, id_ in steered.pins.items()}
        try:
            pinned = pins if self._announced else None
            steered.group.steer(program(indexes, len(steered.group.sockets), steering_of(self._lane), pinned))
        except OSError as error:  # no memory for the program (net.core.optmem_max)
            logger.warning("Datagrams pass through the main process from now on: %s", error.strerror)
            steered.steers = False
            steered.group.steer(ret(OWN_SOCKET))


def _has_moved(buckets: Collection[int], pins: Collection[bytes], address: tuple[str, int]) -> bool:
    """Return whether an address that is not pinned lost its child when these buckets changed hands."""
    encoded = encode_address(*address)
    return bucket_of(encoded) in buckets and encoded not in pins
