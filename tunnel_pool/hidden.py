"""Hidden swarms over a pool: each is the work of one child (RPC_MONITOR), and of another when that one dies."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    DESTROY_REASON_UNNEEDED,
    Circuit,
    Swarm,
)

from overlay.hidden import END_TO_END, end_to_end_address
from rpc import control_pb2 as pb
from tunnel_pool.pool.owners import SwarmOwners
from tunnel_pool.pool.pool import ProcessPool

logger = logging.getLogger(__name__)

OnPeer = Callable[[tuple[str, int]], Any]
"""Hears where a new end-to-end peer is found: an address for libtorrent's SOCKS5 proxy."""


def lookup_hash(infohash: bytes) -> bytes:
    """The hash under which a torrent's introduction points are found (Tribler's get_lookup_info_hash)."""
    return hashlib.sha1(b"tribler anonymous download" + infohash.hex().encode()).digest()  # noqa: S324


class PooledHiddenServices:
    """The part of py-ipv8's HiddenTunnelCommunity that callers use; `swarms` are mirrors."""

    pool: ProcessPool
    circuits: dict[int, Circuit]
    remove_circuit: Callable[..., "asyncio.Future[Any]"]

    def __init__(self) -> None:
        self.swarms: dict[bytes, Swarm] = {}
        self.e2e_callbacks: dict[bytes, OnPeer | None] = {}
        self._owners = SwarmOwners()
        self._callbacks: set[asyncio.Future[Any]] = set()  # kept until done

    def join_swarm(self, info_hash: bytes, hops: int, callback: OnPeer | None = None, seeding: bool = True) -> None:
        """As in py-ipv8; a seeder's child makes the introduction point unasked."""
        if info_hash in self.swarms:
            self.leave_swarm(info_hash)
        seeder_key = default_eccrypto.generate_key("curve25519") if seeding else None
        self.swarms[info_hash] = Swarm(info_hash, hops, self.send_peers_request, seeder_key)
        self.e2e_callbacks[info_hash] = callback
        self._share_swarms()

    def leave_swarm(self, info_hash: bytes) -> None:
        for circuit in list(self.circuits.values()):
            if circuit.info_hash == info_hash and circuit.ctype in (CIRCUIT_TYPE_IP_SEEDER, *END_TO_END):
                self.remove_circuit(circuit.circuit_id, "leaving hidden swarm", destroy=DESTROY_REASON_UNNEEDED)
        self.swarms.pop(info_hash, None)
        self.e2e_callbacks.pop(info_hash, None)
        self._share_swarms()

    def send_peers_request(self, info_hash: bytes, target: Any, hops: int) -> Any:
        """Look-ups are the owner's work."""
        raise NotImplementedError("swarms are looked up by the children")

    def owner_of(self, info_hash: bytes) -> int | None:
        """The slot of the child that has this swarm, None while none has it."""
        return self._owners.of.get(info_hash)

    def _share_swarms(self) -> None:
        """Tell the children whose list of swarms has changed."""
        for slot in self._owners.assign(self.swarms, self.pool.running()):
            swarms = [self.swarms[info_hash] for info_hash in self._owners.swarms_of(slot)]
            message = pb.Monitor(swarms=[_swarm_message(swarm) for swarm in swarms])
            self.pool.call(slot, "monitor", message).add_done_callback(_monitor_answered)

    def _end_to_end_linked(self, circuit: Circuit) -> None:
        """A child has linked one of ours with a seeder's."""
        callback = self.e2e_callbacks.get(circuit.info_hash or b"")
        if callback is not None and circuit.ctype == CIRCUIT_TYPE_RP_DOWNLOADER:
            result = callback(end_to_end_address(circuit.circuit_id))
            if asyncio.iscoroutine(result):
                task = asyncio.ensure_future(result)
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)


def _swarm_message(swarm: Swarm) -> pb.Swarm:
    state = pb.SWARM_STATE_SEEDING if swarm.seeding else pb.SWARM_STATE_DOWNLOADING
    return pb.Swarm(infohash=swarm.info_hash, hops=swarm.hops, state=state)


def _monitor_answered(future: "asyncio.Future[pb.Monitored]") -> None:
    if (error := future.exception()) is not None:
        logger.info("A child was not told of its swarms: %s", error)
