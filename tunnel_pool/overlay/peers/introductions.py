"""Rules of introduction: which peers a node keeps, at which address, and what it sends when a stranger asks for it.

py-ipv8 takes a peer's address from any signed packet, keeps any number of peers at one address, takes our own
address from one unasked answer, and punctures for anybody. Here a peer is a candidate once it has answered a
question of ours at the address that we asked, and only such an answer changes its address. The number of peers that
have not answered a question is limited, and so is the number of peers of each address and network.
"""

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from tunnel_pool.overlay.ground.networks import is_inner, network_of
from tunnel_pool.overlay.ground.pacing import Newest, Recent, TokenBucket
from tunnel_pool.overlay.ground.path import Node
from tunnel_pool.overlay.peers.own_address import AddressVotes
from tunnel_pool.overlay.peers.proven import ProvenSources, Source
from tunnel_pool.overlay.peers.questions import IDENTIFIERS, QUESTION_S, Answer, Questions
from tunnel_pool.overlay.wire.guarded import GuardedHandlers
from tunnel_pool.rpc.drop_reasons import DropReason

MAX_ANSWERED = 1000  # keys of peers that answered us
MAX_HELD = 256  # requests that wait until their sender has answered us
MAX_DOUBTED = 1000
MAX_PER_HOST, MAX_PER_NETWORK, MAX_UNASKED = 4, 8, 16  # the most places in a table of some 60
MAX_PER_INNER_HOST = 64  # of a loopback or private address, where a private network's nodes share a machine
DOUBTED_S = 3.0  # how long a peer may be silent, or take to answer, when another wants its place
PUNCTURES_PER_S, PUNCTURES_AT_ONCE = 2.0, 10.0
PUNCTURE_OF_PEER_S = 5.0

MayContact = Callable[[str, int], bool]
"""Returns whether packets may be sent to this address."""


class PinnedNetwork(Network):
    """py-ipv8's Network, in which a peer stays at its address until `move`.

    py-ipv8 takes the source of each signed packet as the address of whoever signed it (lazy_community.py), be
    the packet old, and sent by somebody else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may_contact: MayContact = lambda host, port: True

    def add_verified_peer(self, peer: Peer) -> None:
        if peer.public_key.key_to_bin() not in self.verified_by_public_key_bin:
            super().add_verified_peer(peer)
            peer.address_frozen = True

    @staticmethod
    def move(peer: Peer, address: Any) -> None:
        """Take the peer to be at this address from now on."""
        peer.address_frozen = False
        peer.add_address(address)
        peer.address_frozen = True

    def discover_address(self, peer: Peer, address: Any, service: bytes | None = None, new_style: bool = False) -> None:
        """Keep an address as py-ipv8 does; pass over an introduced one that nothing may be sent to."""
        if self.may_contact(address[0], address[1]):
            super().discover_address(peer, address, service, new_style)


class HeldRequest(NamedTuple):
    """An introduction request that is answered once its sender has answered us."""

    peer: Peer
    dist: Any
    payload: Any
    until_s: float


def most_per_host(host: str) -> int:
    """Return how many peers are kept of one address."""
    return MAX_PER_INNER_HOST if is_inner(host) else MAX_PER_HOST


def has_room(newcomer: Node, known: Iterable[Node]) -> bool:
    """Return whether few enough peers of the newcomer's address and network are known."""
    hosts, networks = Counter[str](), Counter[str]()
    for node in known:
        hosts[node.host] += 1
        networks[network_of(node.host)] += 1
    if hosts[newcomer.host] >= most_per_host(newcomer.host):
        return False
    return is_inner(newcomer.host) or networks[network_of(newcomer.host)] < MAX_PER_NETWORK


class CarefulIntroductions(GuardedHandlers):
    """Meets peers only with proof; it comes before a py-ipv8 TunnelCommunity among the bases of a class."""

    candidates: dict[Peer, list[int]]
    my_peer: Peer
    my_estimated_wan: Any
    my_estimated_lan: Any
    max_peers: int
    community_id: bytes
    global_time: int
    update_global_time: Callable[[int], None]
    endpoint: Any
    create_introduction_response: Callable[..., bytes]
    get_peers: Callable[[], list[Peer]]
    address_in_lan_subnets: Callable[[str], bool]

    def __init__(self, settings: Any) -> None:
        self._questions = Questions()
        self._held_requests: Newest[Source, HeldRequest] = Newest(MAX_HELD)
        self._answered: set[bytes] = set()  # keys of peers that answered a question of ours
        self.proven = ProvenSources()
        self._doubted: dict[bytes, float] = {}  # when each peer was asked whether it is still there, by mid
        self._source: Any = None  # the source of the packet that is being handled
        self._votes = AddressVotes()
        self._punctures = TokenBucket()
        self._punctured = Recent[bytes](PUNCTURE_OF_PEER_S)
        self.may_contact: MayContact = settings.may_contact
        super().__init__(settings)  # type: ignore[call-arg]
        self.my_peer.address_frozen = True  # py-ipv8 takes it from each answer
        if isinstance(self.network, PinnedNetwork):
            self.network.may_contact = self.may_contact

    def on_packet(self, packet: tuple[Any, bytes], warn_unknown: bool = True) -> None:
        self._source = packet[0]
        super().on_packet(packet, warn_unknown)

    # What we ask

    def walk_to(self, address: Any) -> None:
        """Ask for an introduction as py-ipv8 does, if this address may be asked now."""
        if self._may_ask(address):
            super().walk_to(address)  # type: ignore[misc]

    def send_introduction_request(self, peer: Peer) -> None:
        """Ask a peer for an introduction as py-ipv8 does, if its address may be asked now."""
        if self._may_ask(peer.address):
            super().send_introduction_request(peer)  # type: ignore[misc]

    def _may_ask(self, address: Any) -> bool:
        if self._is_bound_to(address) or not self._questions.may_ask(tuple(address), time.monotonic()):
            self.counters[DropReason.INTRODUCTION_NOT_ASKED] += 1
            return False
        return True

    def _is_bound_to(self, address: Any) -> bool:
        """Return whether this is the address of our own socket, or the one that other nodes see us at."""
        return tuple(address) in (tuple(self.endpoint.get_address()), tuple(self.my_estimated_wan))

    def _ask_in_turn(self, address: Any) -> None:
        """Ask a stranger who made us do so: of all strangers together, so many a second are asked."""
        if self._questions.may_be_made_to_ask(tuple(address), time.monotonic()):
            self.walk_to(address)
        else:
            self.counters[DropReason.INTRODUCTION_NOT_ASKED] += 1

    def create_introduction_request(
        self, socket_address: Any, extra_bytes: bytes = b"", new_style: bool = False, prefix: bytes | None = None
    ) -> bytes:
        # The identifier is py-ipv8's global time (community.py), which whoever has heard from us could count on.
        self.update_global_time(self.global_time + secrets.randbelow(IDENTIFIERS))
        packet: bytes = super().create_introduction_request(  # type: ignore[misc]
            socket_address, extra_bytes, new_style, prefix
        )
        self._questions.ask(tuple(socket_address), self.global_time % IDENTIFIERS, time.monotonic())
        return packet

    def _is_answer(self, payload: Any) -> bool:
        """Return whether a question was sent to the address that the packet is from; once for each question."""
        answer = self._questions.answered(tuple(self._source), payload.identifier, time.monotonic())
        if answer is Answer.GUESSED:
            self.counters[DropReason.INTRODUCTION_GUESSED] += 1
        return answer is Answer.ASKED

    # Whom we meet

    def on_introduction_request(self, peer: Peer, dist: Any, payload: Any) -> None:
        """Answer a peer that is known to be there; ask another one first, and answer it once it has answered.

        An answer is longer than a request, and the source may be forged or the signed packet old. A peer is kept if
        there is room. Many may be behind one address: who is not kept is answered, too, and may use this node.
        """
        key, now_s = peer.public_key.key_to_bin(), time.monotonic()
        is_our_key = key == self.my_peer.public_key.key_to_bin()
        if is_our_key:
            self._questions.came_back(tuple(self._source), payload.identifier, now_s)
        if is_our_key or self._is_bound_to(self._source):
            self.counters[DropReason.INTRODUCTION_OF_OURSELVES] += 1
            return
        known = self.network.get_verified_by_public_key_bin(key)
        is_kept = known is not None or self._make_room(peer)
        if not is_kept:
            self.counters[DropReason.INTRODUCTION_REFUSED] += 1
        elif known is None:
            self.network.add_verified_peer(peer)
            self.network.discover_services(peer, [self.community_id])
        source = Source(tuple(self._source), key)
        if known is not None and tuple(known.address) == source.address and key in self._answered:
            super().on_introduction_request(peer, dist, payload)  # type: ignore[misc]
        elif self._may_answer(source, now_s):
            if is_kept and key not in self._answered and not self._questions.is_asked(source.address, now_s):
                self._ask_in_turn(self._source)
            if is_kept:
                super().on_introduction_request(peer, dist, payload)  # type: ignore[misc]
            else:
                self._answer_without_keeping(peer, payload)
        elif not self.proven.has(source, now_s):
            self._held_requests[source] = HeldRequest(peer, dist, payload, now_s + QUESTION_S)
            self._ask_in_turn(self._source)

    def _may_answer(self, source: Source, now_s: float) -> bool:
        """Return whether a peer that is not kept, or is kept at another address, is answered at once."""
        if self.proven.has(source, now_s):
            return self.proven.take(source, now_s)
        return self._questions.may_answer_early(source.address, now_s)

    def _answer_without_keeping(self, peer: Peer, payload: Any) -> None:
        answer = self.create_introduction_response(
            payload.destination_address, self._source, payload.identifier, new_style=peer.new_style_intro
        )
        self.endpoint.send(self._source, answer)

    def _answer_held(self, source: Source) -> None:
        """Answer the request of a peer that has now answered us."""
        held = self._held_requests.pop(source, None)
        if held is not None and held.until_s > time.monotonic():
            self.on_introduction_request(held.peer, held.dist, held.payload)

    def _make_room(self, newcomer: Peer) -> bool:
        """Return whether a peer that came unasked may stay; another of its kind may have to go for it."""
        peers = self.get_peers()
        if not self._has_room(newcomer, peers):
            gone = self._gone_from(newcomer, peers)
            if gone is None:
                return False
            self.network.remove_peer(gone)
            self.counters[DropReason.INTRODUCTION_REPLACED] += 1
            peers = self.get_peers()
            if not self._has_room(newcomer, peers):
                return False
        unasked = [peer for peer in peers if peer.public_key.key_to_bin() not in self._answered]
        if len(unasked) >= MAX_UNASKED or len(peers) >= self.max_peers:
            if not unasked:
                return False
            self.network.remove_peer(random.choice(unasked))
            self.counters[DropReason.INTRODUCTION_SHED] += 1
        return True

    def _has_room(self, newcomer: Peer, peers: Iterable[Peer]) -> bool:
        return has_room(Node(b"", newcomer.address[0]), (Node(b"", peer.address[0]) for peer in peers))

    def _gone_from(self, newcomer: Peer, peers: Iterable[Peer]) -> Peer | None:
        """Return a peer of the newcomer's network that does not answer any longer; ask the most silent one if it does.

        A node that was restarted comes with another key: those that it had must not shut it out.
        """
        now_s, place = time.time(), network_of(newcomer.address[0])
        rivals = [peer for peer in peers if network_of(peer.address[0]) == place]
        here = [peer for peer in rivals if peer.address[0] == newcomer.address[0]]
        if len(here) >= most_per_host(newcomer.address[0]):
            rivals = here
        for peer in sorted(rivals, key=lambda peer: float(peer.last_response)):
            asked_s = self._doubted.get(peer.mid, 0.0)
            if asked_s > peer.last_response:
                if now_s - asked_s > DOUBTED_S:
                    del self._doubted[peer.mid]
                    return peer
            elif now_s - peer.last_response > DOUBTED_S:
                if len(self._doubted) >= MAX_DOUBTED:
                    self._doubted.clear()
                self._doubted[peer.mid] = now_s
                self._ask_in_turn(peer.address)
        return None

    def on_introduction_response(self, peer: Peer, dist: Any, payload: Any) -> None:
        """Take an answer to a question of ours, then answer what its sender had asked; others change nothing."""
        if not self._is_answer(payload):
            self.counters[DropReason.INTRODUCTION_UNASKED] += 1
            return
        source = Source(tuple(self._source), peer.public_key.key_to_bin())
        self.proven.add(source, time.monotonic())
        self._take_answer(peer, dist, payload)
        self._answer_held(source)

    def _take_answer(self, peer: Peer, dist: Any, payload: Any) -> None:
        """Do as py-ipv8 does with an answer, if there is room for the peer, and it is where it was."""
        key = peer.public_key.key_to_bin()
        known = self.network.get_verified_by_public_key_bin(key)
        others = [other for other in self.get_peers() if other != peer]
        if known is None and (len(others) >= self.max_peers or not self._has_room(peer, others)):
            self.counters[DropReason.INTRODUCTION_REFUSED] += 1
            return
        if known is not None and known.address[0] != self._source[0] and not self._answers_us(payload):
            self.counters[DropReason.INTRODUCTION_OF_ANOTHER_ADDRESS] += 1
            return
        wan = self.my_estimated_wan
        self._answered.add(key)
        if len(self._answered) > MAX_ANSWERED:
            self._answered.intersection_update(other.public_key.key_to_bin() for other in self.get_peers())
            self._answered.add(key)
        if known is not None:
            PinnedNetwork.move(known, self._source)
        super().on_introduction_response(peer, dist, payload)  # type: ignore[misc]
        self.my_estimated_wan = wan
        self._vote(peer, payload.destination_address)

    def _answers_us(self, payload: Any) -> bool:
        """Return whether the signed answer says that we asked, and not somebody who hands it on to us."""
        asker = payload.destination_address[0]
        return asker in (self.my_estimated_wan[0], self.my_estimated_lan[0]) or self.my_estimated_wan[1] == 0

    def _vote(self, voter: Peer, address: Any) -> None:
        """Count under which address a peer sees us."""
        if isinstance(address, UDPv4Address) and not self.address_in_lan_subnets(address[0]):
            elected = self._votes.vote(network_of(voter.address[0]), tuple(address), tuple(self.my_estimated_wan))
            self.my_estimated_wan = UDPv4Address(*elected)

    def introduction_request_callback(self, peer: Peer, dist: Any, payload: Any) -> None:
        """Do as py-ipv8 does with who has answered us; who only came to us is asked first (RandomChurn)."""
        if peer.public_key.key_to_bin() in self._answered:
            super().introduction_request_callback(peer, dist, payload)  # type: ignore[misc]

    def get_peer_for_introduction(self, exclude: Peer | None = None, new_style: bool = False) -> Peer | None:
        """Return one of those that answered us: an address that somebody made up is nobody's to be contacted."""
        answered = [peer for peer in self.get_peers() if peer.public_key.key_to_bin() in self._answered]
        others = [
            peer for peer in answered if peer != exclude and (new_style or isinstance(peer.address, UDPv4Address))
        ]
        return random.choice(others) if others else None

    # What we send for others

    def on_puncture_request(self, source_address: Any, dist: Any, payload: Any, new_style: bool = False) -> None:
        """Puncture, as py-ipv8 does, for a peer that answered us, to an address that may be contacted, now and then."""
        peer = self.network.get_verified_by_address(source_address)
        target, now_s = payload.wan_walker_address, time.monotonic()
        if target[0] == self.my_estimated_wan[0]:
            target = payload.lan_walker_address
        key = peer.public_key.key_to_bin() if peer is not None else b""
        if key not in self._answered or not self.may_contact(*target[:2]):
            self.counters[DropReason.PUNCTURE_REFUSED] += 1
        elif self._punctured.has(key, now_s) or not self._punctures.spend(PUNCTURES_PER_S, PUNCTURES_AT_ONCE, now_s):
            self.counters[DropReason.PUNCTURE_TOO_OFTEN] += 1
        else:
            self._punctured.add(key, now_s)
            super().on_puncture_request(source_address, dist, payload, new_style)  # type: ignore[misc]
