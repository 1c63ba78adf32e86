"""Meets other nodes, and serves their hidden swarms as a meeting point, in every process of a node."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ipv8.messaging.anonymization.crypto import CryptoEndpoint
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelSettings
from ipv8.messaging.anonymization.payload import PeersResponsePayload
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.hidden_swarms.meeting_points import MeetingPoints
from tunnel_pool.overlay.paths.guards import GuardOrder
from tunnel_pool.overlay.peers.introductions import CarefulIntroductions, MayContact
from tunnel_pool.overlay.wire.crypto_endpoint import DataCellEndpoint

PEER_FLAG_EXIT_BACKUP = 16384  # of Tribler's
SUSPECT_S = 120.0  # within this time, churn has asked whether the peer lives
MAX_PINGED = 256


class NodeSettings(HiddenTunnelSettings):
    """Holds py-ipv8's settings, and what this project adds for whoever meets other nodes."""

    siblings: frozenset[bytes] = frozenset()
    counters: Counter[str]
    may_contact: MayContact = staticmethod(lambda host, port: True)

    # py-ipv8 keeps removed circuits for 5 seconds, for payments that this
    # project does not make.
    remove_tunnel_delay = 0

    # Of a node that is there, the answer comes within a few round trips.
    next_hop_timeout = 5


class NodeCommunity(CarefulIntroductions, MeetingPoints):
    """Keeps the nodes that proved to be at their address, and remembers which of them are silent.

    `on_met` is called at each introduction. `guard_order` returns the guards, None if each circuit's first hop is
    chosen anew. `hops_in_use` returns the first hops of the node's circuits, and `lacks_circuits` whether there are
    too few circuits. A caller may replace all of them.
    """

    settings_class = NodeSettings

    def __init__(self, settings: Any) -> None:
        self.counters = settings.counters
        self.on_met: Callable[[], None] = lambda: None
        self.guard_order: Callable[[], GuardOrder | None] = lambda: None
        self.hops_in_use: Callable[[], set[Peer]] = set
        self.lacks_circuits: Callable[[], bool] = lambda: False
        self._siblings = settings.siblings
        self._pinged_s: dict[bytes, float] = {}  # when each peer was pinged, by mid
        self.suspects = Recent[bytes](SUSPECT_S)  # peers that did not answer, by mid
        self.crypto_endpoint: Any
        super().__init__(settings)
        # An answer comes over the circuit that the request took, never to our own address.
        self.decode_map[PeersResponsePayload.msg_id] = None
        if not isinstance(self.endpoint, CryptoEndpoint):
            self._use_python_engine()

    def _use_python_engine(self) -> None:
        """Put our Python packet path in the place of py-ipv8's."""
        self.endpoint.remove_listener(self.crypto_endpoint)
        self.crypto_endpoint = DataCellEndpoint(self.endpoint, self.counters)
        self.crypto_endpoint.setup_tunnels(self, self.settings)
        self.circuits = self.crypto_endpoint.circuits
        self.relay_from_to = self.crypto_endpoint.relays
        self.exit_sockets = self.crypto_endpoint.exit_sockets

    async def unload(self) -> None:
        """Unload this overlay and those beside it, then close the socket."""
        if self.ipv8 is not None:
            await self.ipv8.close()
        await super().unload()
        await asyncio.sleep(0)
        self.endpoint.close()

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, since the start."""
        of_the_engine: Counter[str] = self.crypto_endpoint.dropped()
        return self.counters + of_the_engine

    # Whom we know

    def first_hops(self) -> set[Peer]:
        """Return the peers that our circuits begin with, or may begin with next: our guards."""
        return self.hops_in_use() | self.guards()

    def guards(self) -> set[Peer]:
        """Return the peers that are guards, of both layers."""
        order = self.guard_order()
        keys = {*order.first, *order.second} if order is not None else set()
        return {peer for peer in self.candidates if peer.public_key.key_to_bin() in keys}

    def is_missing_circuits(self) -> bool:
        """Return whether circuits are wanted that we have none of, or could not be built."""
        return not self.candidates or self.lacks_circuits()

    def _is_me(self, peer: Peer) -> bool:
        """Return whether the peer is this node: this process or another child, of the same key or of a sibling's."""
        return peer.mid == self.my_peer.mid or peer.public_key.key_to_bin() in self._siblings

    def is_silent(self, peer: Peer) -> bool:
        """Return whether a peer did not answer of late."""
        return self.suspects.has(peer.mid, time.monotonic())

    def get_candidates(self, *requested_flags: int) -> list[Peer]:
        """Return candidates as py-ipv8 does, without ourselves, and without silent ones while there are others.

        Exits that offer themselves as a backup come without others only (Tribler's tunnel/community.py).
        """
        peers = self.also_silent(*requested_flags)
        heard = [peer for peer in peers if not self.is_silent(peer)] or peers
        if PEER_FLAG_EXIT_BT not in requested_flags:
            return heard
        return [peer for peer in heard if PEER_FLAG_EXIT_BACKUP not in self.candidates.get(peer, ())] or heard

    def also_silent(self, *requested_flags: int) -> list[Peer]:
        """Return candidates without ourselves, whether they have answered of late or not, backup exits among them."""
        return [peer for peer in super().get_candidates(*requested_flags) if not self._is_me(peer)]

    # What py-ipv8 calls

    def introduction_request_callback(self, peer: Peer, dist: Any, payload: Any) -> None:
        if not self._is_me(peer):
            super().introduction_request_callback(peer, dist, payload)
            self.on_met()

    def introduction_response_callback(self, peer: Peer, dist: Any, payload: Any) -> None:
        if not self._is_me(peer):
            super().introduction_response_callback(peer, dist, payload)
            # py-ipv8 keeps the object that it met first, at the address of then.
            known = self.network.get_verified_by_public_key_bin(peer.public_key.key_to_bin())
            self.candidates[known or peer] = self.candidates.pop(peer)
            self._note_pong(peer)
            self.on_met()

    def send_ping(self, peer: Peer) -> None:
        """Ask whether a peer lives, for RandomChurn; only py-ipv8's DiscoveryCommunity has real pings."""
        if len(self._pinged_s) > MAX_PINGED:
            self._pinged_s.clear()
        self._pinged_s[peer.mid] = time.monotonic()
        self.send_introduction_request(peer)

    def _note_pong(self, peer: Peer) -> None:
        """Note the answer to a ping so that RandomChurn asks this peer again only when it has been silent."""
        pinged_s = self._pinged_s.pop(peer.mid, None)
        known = self.network.get_verified_by_public_key_bin(peer.public_key.key_to_bin())
        if pinged_s is not None and known is not None:
            known.pings.extend([time.monotonic() - pinged_s] * known.pings.maxlen)
