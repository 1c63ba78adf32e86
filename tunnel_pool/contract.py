"""The contract of a TunnelCommunity with its callers.

Two classes keep it: tunnel_pool.overlay.community.LocalTunnelCommunity in one process, and
tunnel_pool.pooled.community.PooledTunnelCommunity over children. tests/whole/test_contract.py
runs the same tests against both. Names and meanings are py-ipv8's
(messaging/anonymization/community.py).
"""

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, Circuit, RelayRoute, Swarm
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import Guest
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pool.scaling import Scaling
from tunnel_pool.rpc.sync import CarriedState
from tunnel_pool.socks5.carrier import Carrier, OnLost

Address = tuple[str, int]


class Tunnels(Protocol):
    """Names what either kind of TunnelCommunity offers: circuits, and datagrams over them."""

    circuits: dict[int, Circuit]
    circuits_needed: dict[int, int]

    @property
    def pool(self) -> ProcessPool | None:
        """Return the children that carry the circuits, None in one process."""

    @property
    def scaling(self) -> Scaling | None:
        """Return who says how many children there are, None in one process."""

    @property
    def swarms(self) -> Mapping[bytes, Swarm]:
        """Return the hidden swarms that are taken part in, by the hash that is looked up."""

    @property
    def relay_from_to(self) -> Mapping[int, RelayRoute]:
        """Return where the cells of others' circuits go on to, by circuit id."""

    @property
    def exit_sockets(self) -> Mapping[int, TunnelExitSocket]:
        """Return the ends of others' circuits here, by circuit id."""

    @property
    def candidates(self) -> Mapping[Peer, list[int]]:
        """Return the peers that a circuit may use, with their peer flags; never ourselves."""

    on_datagram: Callable[[Circuit, bytes, bytes], None]
    """Called with each datagram that comes in: its circuit, its origin outside (RFC 1928
    section 5) and its payload. Once this is replaced, `on_raw_data` is not called."""

    on_raw_data: Callable[[Circuit, Address, bytes], None]
    """Called as py-ipv8 calls it: over which circuit, from where outside, what."""

    on_orphans: Callable[[Lane, list[bytes]], None]
    """Called when a circuit is gone that clients met directly: its lane, and the
    destinations (RFC 1928 section 5) that it carried."""

    on_guest: Callable[[Guest], None]
    """Called when the other end of a hidden swarm's circuit has opened a stream, or an exit for
    one who has called: a client is to connect to the guest's address, by TCP, within some seconds."""

    on_circuit_removed: Callable[[Circuit, str], None]
    """Called once for each circuit that is gone, with the reason."""

    def find_circuits(
        self,
        ctype: str | None = CIRCUIT_TYPE_DATA,
        state: str | None = CIRCUIT_STATE_READY,
        exit_flags: Collection[int] | None = None,
        hops: int | None = None,
        group: int | None = 0,
    ) -> list[Circuit]:
        """Return the circuits of this kind; of all isolation groups when `group` is None (overlay/ground/lanes.py).

        Here and below, group 0 is py-ipv8's own.
        """

    def circuits_for_new_peers(self, hops: int, group: int = 0) -> list[Circuit]:
        """Return the ready circuits that a destination may be given to; others only keep those that they have."""

    def create_circuit(
        self,
        goal_hops: int,
        ctype: str = CIRCUIT_TYPE_DATA,
        exit_flags: Collection[int] | None = None,
        required_exit: Peer | None = None,
        info_hash: bytes | None = None,
        *,
        group: int = 0,
    ) -> Circuit | None:
        """Start building a circuit and return it, EXTENDING; its `ready` future ends with the circuit, or with None.

        Return None when no peer is known for it, or when the required exit is this node.
        Over a pool, the circuit's `hop` is None until the child has told its first hop.
        """

    def remove_circuit(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> "Future[Any]":
        """Close at once; when the future ends the circuit is gone from `circuits`."""

    def build_tunnels(self, hops: int, group: int = 0) -> None:
        """Keep `settings.max_circuits` circuits of this many hops from now on."""

    def end_tunnels(self, hops: int, group: int = 0) -> None:
        """Stop keeping circuits of this lane, and remove those that are there."""

    def tunnels_ready(self, hops: int, group: int = 0) -> float:
        """Return which share of the wanted circuits is ready; 1.0 when none are wanted."""

    def get_candidates(self, *requested_flags: int) -> list[Peer]: ...

    def wanted_circuits(self) -> dict[Lane, int]: ...

    def send_data(
        self, target: Address, circuit_id: int, dest_address: Address, source_address: Address, data: bytes
    ) -> None:
        """Send a datagram as py-ipv8 does; `send_datagram` needs neither the first hop nor a source."""

    def send_datagram(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Send a datagram out of the circuit's exit, to an address of RFC 1928 section 5.

        Dropped and counted when that can't be.
        """

    def carrier(self, lane: Lane, on_lost: OnLost, *, announced: bool = False) -> Carrier | None:
        """Return what carries this lane's datagrams past Python or the main process, None if nothing can.

        With `announced`, it leaves questions to trackers and DHT nodes to the server.
        """

    def join_swarm(
        self,
        info_hash: bytes,
        hops: int,
        callback: Callable[[Address], Any] | None = None,
        seeding: bool = True,
        group: int = 0,
    ) -> None:
        """Take part in a hidden swarm; a seeder's introduction points are made unasked.

        `info_hash` is the one that is looked up (tunnel_pool.pooled.hidden_services.lookup_hash). A
        downloader's `callback` hears the address of each seeder that is linked to us
        (overlay/ground/end_to_end.py), which the SOCKS5 server knows.
        """

    def leave_swarm(self, info_hash: bytes) -> None:
        """Leave a hidden swarm, and remove its circuits."""

    def is_offered(self, info_hash: bytes) -> bool:
        """Return whether an introduction point names us as a seeder of this hidden swarm."""

    async def perform_http_request(
        self, destination: Address, request: bytes, hops: int = 1, group: int = 0, circuit_id: int | None = None
    ) -> bytes:
        """Return the answer to an HTTP request that an exit makes. Raises HttpError.

        It is the exit of the circuit with this id, while that is there.
        """

    def refuse_guest(self, guest: Guest) -> None:
        """Tell the guests that are known as this one (`on_guest`) that no client will connect to them."""

    def announce_over(self, circuit_id: int, then: Callable[[], object]) -> None:
        """Hand what comes over this circuit from where no client sends to, so many a second, to `on_datagram`.

        Others are told to find us by the address under which its exit's socket is seen. `then` is called once it is so;
        what came before went to clients.
        """

    async def find_exit_port(self, circuit_id: int) -> int | None:
        """Return the port of the IPv4 socket that a circuit's exit sends from, as the exit says.

        None where it does not say so, or the circuit is gone.
        """

    async def find_dht_node(self, name: str, port: int, hops: int) -> Address | None:
        """Return the address from which the DHT node of this name answers an exit, None when it does not."""

    async def update_statistics(self) -> None:
        """Return when circuits have counted all that they carried until now; they are a moment behind otherwise."""

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, since the start."""

    def set_exit_rules(self, rules: ExitRules) -> None:
        """Apply these rules of an operator's from now on, to everything that leaves from here."""

    def set_admission(self, admission: Admission) -> None:
        """Set how many of others' circuits this node, with all its children, joins from now on."""

    def carried(self) -> CarriedState:
        """Return what was relayed and exited for others."""

    def listening(self) -> list[Address]:
        """Return the UDP addresses that this node listens at; over a pool, once its children run."""

    def failure(self) -> str | None:
        """Return why no datagram can be carried any more, None while one can."""

    async def unload(self) -> None:
        """Remove all circuits and close everything."""
