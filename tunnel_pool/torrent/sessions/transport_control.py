"""Has a libtorrent session begin its connections by TCP or by uTP, by what the circuits of its lane carry now."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Protocol

from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, CIRCUIT_TYPE_RP_DOWNLOADER

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, end_to_end_circuit, number_of_end
from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.overlay.ground.streams import Guest, may_lead, streams_of
from tunnel_pool.torrent.sessions.transport import UTP_ALONE, Transport, TransportChoice, Ways

CHOOSE_S, IDLE_CHOOSE_S = 0.25, 1.0
SETTLED_S = 10.0  # how long a choice has held until it is looked at less often
AT_ONCE_S = 0.05  # one look at the circuits serves all sessions that are asked within this time
ENDS_ANSWER_S = 3.0  # how long another end, up to eight hops away, has to answer before it is met by uTP
ENDS_POLL_S = 0.02


class SessionOfPeers(Protocol):
    """Describes what a libtorrent session has to offer for this."""

    @property
    def is_lonely(self) -> bool:
        """Return whether a torrent wants peers and has none."""

    def set_transport(self, transport: Transport) -> None:
        """Begin connections to peers by these from now on."""

    def connect_to_end(self, peer: Address, swarm: bytes) -> None:
        """Connect to the other end of a circuit, for the torrents of this hidden swarm."""

    def connect_to_caller(self, peer: Address, infohash: bytes) -> bool:
        """Connect to a stranger who has called at an exit, for the torrent of this infohash (20 bytes).

        Return whether there is such a torrent.
        """


Kinds = Collection[tuple[str, bool]]
"""Of circuits: their types, and whether their other ends speak streams."""


class LaneKinds:
    """Says what kinds of circuits each lane has; one look at all circuits serves all lanes, however many there are."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels
        self._by_lane: dict[Lane, set[tuple[str, bool]]] = {}
        self._looked_s = float("-inf")

    def of(self, lane: Lane, now_s: float, *, within_s: float = 0.0, since_s: float = float("-inf")) -> Kinds:
        """Return a lane's kinds, as they were less than so many seconds ago, and at `since_s` or later."""
        if now_s - self._looked_s >= within_s or self._looked_s < since_s:
            self._looked_s = now_s
            self._by_lane = {}
            for circuit in self._tunnels.circuits.values():
                if may_lead(circuit):
                    kind = circuit.ctype, streams_of(circuit).are_spoken
                    self._by_lane.setdefault(lane_of(circuit), set()).add(kind)
        return self._by_lane.get(lane, ())


class TransportControl:
    """Chooses for one session, from `start` until `end`."""

    def __init__(self, tunnels: Tunnels, lane: Lane, session: SessionOfPeers, kinds: LaneKinds) -> None:
        """`kinds` serves all sessions of these tunnels."""
        self._tunnels = tunnels
        self._kinds = kinds
        self._lane = lane
        self._session = session
        self._choice = TransportChoice()
        self._chosen = UTP_ALONE
        self._chosen_s = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._chosen_s = time.monotonic()
        self._run(self._keep())

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def choose(self, now_s: float, since_s: float | None = None) -> None:
        """Choose by the circuits of now; a look at them that others had at `since_s` or later will do.

        An older one may show them before they were heard to speak streams, and who is met by uTP then keeps to it.
        """
        since_s = now_s if since_s is None else since_s
        self._choose(now_s, self._kinds.of(self._lane, now_s, within_s=AT_ONCE_S, since_s=since_s))

    def _choose(self, now_s: float, kinds: Kinds) -> None:
        ways = Ways(
            to_exits=(CIRCUIT_TYPE_DATA, True) in kinds,
            to_silent_exits=(CIRCUIT_TYPE_DATA, False) in kinds,
            to_ends=any((kind, True) in kinds for kind in END_TO_END),
            to_silent_ends=(CIRCUIT_TYPE_RP_DOWNLOADER, False) in kinds,
        )
        chosen = self._choice.choose(now_s, ways, is_lonely=self._session.is_lonely)
        if chosen != self._chosen:
            self._chosen, self._chosen_s = chosen, now_s
            self._session.set_transport(chosen)

    def guest_came(self, guest: Guest) -> bool:
        """Connect to a guest, who has opened a stream and waits; return whether there is a torrent for him.

        libtorrent may try uTP first; the packet engine refuses that, and nothing but TCP is left for this peer alone.
        """
        self.choose(time.monotonic())
        if guest.infohash is not None:
            return self._session.connect_to_caller(guest.address, guest.infohash)
        self._session.connect_to_end(guest.address, guest.circuit.info_hash or b"")
        return True

    def add_end(self, peer: Address, add: Callable[[Address], object]) -> None:
        """Call `add` with the other end of a hidden swarm's circuit, once it is known how to meet it."""
        self._run(self._add_end(peer, add))

    async def _add_end(self, peer: Address, add: Callable[[Address], object]) -> None:
        await self._answered(peer)
        add(peer)

    async def _answered(self, peer: Address) -> None:
        """Return when the other end of a circuit is known to speak streams, or has had the time to say so."""
        until_s = time.monotonic() + ENDS_ANSWER_S
        number = number_of_end(*peer)
        while time.monotonic() < until_s:
            circuit = end_to_end_circuit(self._tunnels.circuits.values(), number or 0, self._lane)
            if circuit is None:
                break
            if streams_of(circuit).are_spoken:
                break
            await asyncio.sleep(ENDS_POLL_S)
        self.choose(time.monotonic())

    async def _keep(self) -> None:
        while True:
            now_s = time.monotonic()
            self._choose(now_s, self._kinds.of(self._lane, now_s, within_s=CHOOSE_S / 2))
            await asyncio.sleep(CHOOSE_S if now_s - self._chosen_s < SETTLED_S else IDLE_CHOOSE_S)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
