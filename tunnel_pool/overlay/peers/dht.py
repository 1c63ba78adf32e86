"""The DHT of introduction points, by this project's rules: nobody is answered at length in somebody else's name.

py-ipv8's DHT (dht/community.py) answers a find-request of 190 bytes with up to two thousand, wherever it seems
to come from, takes whoever it seems to come from into its routing table, and asks whichever addresses it is
told of. Here, who asks is asked first: a ping goes where the request came from, and the request waits for its
answer. To another DHT node this is a look-up that takes one round trip more, the first time.
"""

import secrets
import struct
import time
from asyncio import Future
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from ipv8.community import CommunitySettings
from ipv8.dht.community import Crawl, Request
from ipv8.dht.discovery import DHTDiscoveryCommunity
from ipv8.dht.payload import (
    ConnectPeerRequestPayload,
    ConnectPeerResponsePayload,
    FindRequestPayload,
    FindResponsePayload,
    PingRequestPayload,
    PingResponsePayload,
    StorePeerRequestPayload,
    StorePeerResponsePayload,
    StoreRequestPayload,
    StoreResponsePayload,
)
from ipv8.dht.routing import NODE_STATUS_BAD, Node
from ipv8.dht.storage import Storage
from ipv8.lazy_community import lazy_wrapper_wd
from ipv8.messaging.payload_headers import BinMemberAuthenticationPayload
from ipv8.peer import Peer

from tunnel_pool.overlay.peers.introductions import CarefulIntroductions, MayContact, PinnedNetwork
from tunnel_pool.overlay.peers.proven import HeldPackets, Source
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

PINGED_AT_ONCE = 16  # the most nodes that are asked at a time whether they answer again
MAX_KEYS = 10_000  # the most DHT keys that are stored here
MAX_VALUES = 32  # the most values of a key; eight of a swarm's introduction points are asked for at a time

Handler = Callable[[Any, bytes], Any]

_REQUESTS = (StoreRequestPayload, FindRequestPayload, StorePeerRequestPayload, ConnectPeerRequestPayload)
_RESPONSES = {  # and the names of what they answer in py-ipv8's request cache
    PingResponsePayload: "ping",
    StoreResponsePayload: "store",
    FindResponsePayload: "find",
    StorePeerResponsePayload: "store-peer",
    ConnectPeerResponsePayload: "connect-peer",
}


class CarefulDhtSettings(CommunitySettings):
    may_contact: MayContact
    counters: Counter[str]


class BoundedStorage(Storage):
    """py-ipv8's storage with room for so many keys and values, of which the newest stay."""

    def put(self, key: bytes, *args: Any, **kwargs: Any) -> None:
        super().put(key, *args, **kwargs)
        del self.items[key][MAX_VALUES:]
        if len(self.items) > MAX_KEYS:
            del self.items[next(iter(self.items))]

    def clean(self) -> None:
        super().clean()
        for key in [key for key, values in self.items.items() if not values]:
            del self.items[key]


class CarefulDht(CarefulIntroductions, DHTDiscoveryCommunity):
    """py-ipv8's DHT overlay, which answers sources that are known to be there, so many times a second."""

    def __init__(self, settings: CarefulDhtSettings) -> None:
        self.counters = settings.counters
        super().__init__(settings)
        self.network = PinnedNetwork()
        self.network.may_contact = settings.may_contact
        self.network.blacklist_mids.append(self.my_peer.mid)
        self.store: defaultdict[bytes, list[Node]] = defaultdict(list)
        self._held = HeldPackets()
        for request in _REQUESTS:
            self.decode_map[request.msg_id] = partial(self._requested, self.decode_map[request.msg_id])
        for response, name in _RESPONSES.items():
            self.decode_map[response.msg_id] = partial(self._responded, name, self.decode_map[response.msg_id])

    def get_storage(self, node: Node) -> Storage:
        kind = self.get_address_class(node)
        if kind not in self.storages:
            self.storages[kind] = BoundedStorage()
        return self.storages[kind]

    def nodes(self) -> list[Node]:
        """Return the nodes that are known, whether they answer or not."""
        buckets = (bucket for table in self.routing_tables.values() for bucket in table.trie.values())
        return [node for bucket in buckets for node in bucket.nodes.values()]

    def ping_all(self) -> None:
        """Do as py-ipv8 does, and forget the empty lists that it keeps of each key it was ever asked for.

        Ask nodes again that did not answer: nobody else does, and after a minute without a network all would be bad for
        ever (py-ipv8's PingChurn, which asks all nodes all the time, is not used).
        """
        super().ping_all()
        bad = (node for node in self.nodes() if node.status == NODE_STATUS_BAD)
        for node in sorted(bad, key=lambda node: node.last_ping_sent)[:PINGED_AT_ONCE]:
            self.ping(node)
        for key in [key for key, nodes in self.store.items() if not nodes]:
            del self.store[key]

    # What others ask

    def _source_of(self, address: Any, data: bytes) -> tuple[Source, int]:
        """Return whom a signed packet says it is from, and where its payload begins."""
        auth, offset = self.serializer.unpack_serializable(BinMemberAuthenticationPayload, data, offset=PAYLOAD_AT)
        return Source(tuple(address), auth.public_key_bin), offset

    def _requested(self, handler: Handler, address: Any, data: bytes) -> None:
        source, _ = self._source_of(address, data)
        now_s = time.monotonic()
        if not self.proven.has(source, now_s):
            self._ask_first(source, address, data)
        elif self.proven.take(source, now_s):
            handler(address, data)
        else:
            self.counters[DropReason.DHT_REQUEST_TOO_OFTEN] += 1

    def _ask_first(self, source: Source, address: Any, data: bytes) -> None:
        """Hold a request until whoever it is from answers a ping, which is not longer than the request."""
        node = Node(source.public_key, address)
        is_new = self._held.hold(source, data, time.monotonic())
        if is_new is None:
            self.counters[DropReason.DHT_REQUEST_DROPPED] += 1
        elif is_new:
            self.ping(node).add_done_callback(partial(self._answered_ping, source, address))

    def _answered_ping(self, source: Source, address: Any, answer: "Future[Node | None]") -> None:
        held = self._held.release(source)
        if answer.cancelled() or answer.result() is None:
            self.counters[DropReason.DHT_REQUEST_DROPPED] += len(held)
            return
        self.proven.add(source, time.monotonic())
        for packet in held:
            self.on_packet((address, packet))

    def ping(self, node: Node) -> "Future[Node | None]":
        """Ping a node as py-ipv8 does, by a number of 32 bits instead of 16: who does not hear it can't guess it."""
        question = Request(self, "ping", node, consume_errors=True)
        question._number = secrets.randbits(32)  # noqa: SLF001 - py-ipv8 has no other way
        self.request_cache.add(question)
        self.ez_send(node, PingRequestPayload(question.number))
        node.last_ping_sent = time.time()
        answer: Future[Node | None] = question.future
        return answer

    @lazy_wrapper_wd(PingRequestPayload)  # type: ignore[untyped-decorator]
    def on_ping_request(self, peer: Peer, payload: PingRequestPayload, data: bytes) -> None:
        """Answer a ping; remember its sender, as py-ipv8 does, if it is known to be there."""
        if self.proven.has(Source(tuple(peer.address), peer.public_key.key_to_bin()), time.monotonic()):
            super().on_ping_request(peer.address, data)
        else:
            self.ez_send(peer, PingResponsePayload(payload.identifier))

    # What we ask

    def _responded(self, name: str, handler: Handler, address: Any, data: bytes) -> None:
        """Take an answer of the node that was asked, from the address where it was asked, and no other."""
        source, offset = self._source_of(address, data)
        (identifier,) = struct.unpack_from(">I", data, offset)
        question = self.request_cache.get(name, identifier)
        if question is None or source != Source(tuple(question.node.address), question.node.public_key.key_to_bin()):
            self.counters[DropReason.DHT_RESPONSE_UNASKED] += 1
        else:
            handler(address, data)

    async def _contact_node(self, crawl: Crawl, node: Node, puncture_node: Node | None) -> None:
        """Ask a node as py-ipv8 does; of the nodes that it names, keep one of each address that may be contacted."""
        if puncture_node:
            await self._send_find_request(puncture_node, node.id, crawl.force_nodes)
        response = await self._send_find_request(node, crawl.target, crawl.force_nodes, crawl.offset)
        if not response:
            return
        asked = {known.address[0] for known in crawl.nodes_tried} | {
            waiting.node_to_contact.address[0] for waiting in crawl.nodes_todo
        }
        named, response["nodes"] = response.get("nodes", []), []
        for each in named:
            if each.address[0] not in asked and self.may_contact(*each.address[:2]):
                asked.add(each.address[0])
                response["nodes"].append(each)
        crawl.routing_table.add(node)
        crawl.add_response(node, response)
