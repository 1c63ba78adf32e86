"""Finding peers: the tunnels' own, and those of the DHT and of swarms' PEX that hidden services need."""

import asyncio
import logging
import random
import time
from collections import deque
from typing import Any

from ipv8.bootstrapping.dispersy.bootstrapper import DispersyBootstrapper
from ipv8.community import Community
from ipv8.dht import DHTError
from ipv8.dht.provider import DHTCommunityProvider, DHTIntroPointPayload
from ipv8.messaging.anonymization.pex import PexCommunity
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY, IntroductionPoint
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.messaging.serialization import default_serializer
from ipv8.peer import Peer
from ipv8.peerdiscovery.churn import RandomChurn
from ipv8.peerdiscovery.discovery import DiscoveryStrategy, RandomWalk
from ipv8.taskmanager import TaskManager

from tunnel_pool.overlay.ground.config import OverlayConfig
from tunnel_pool.overlay.ground.endless import register_endless
from tunnel_pool.overlay.ground.networks import is_inner
from tunnel_pool.overlay.ground.pacing import Recent, TokenBucket
from tunnel_pool.overlay.node_community import NodeCommunity
from tunnel_pool.overlay.peers.balance import TARGET_PEERS, surplus, wants_more
from tunnel_pool.overlay.peers.bootstrap import make_bootstrappers
from tunnel_pool.overlay.peers.dht import CarefulDht, CarefulDhtSettings
from tunnel_pool.rpc.drop_reasons import DropReason

WALK_INTERVAL_S = 0.5  # while peers are missing; doubled with each step that brings nothing new
CALM_INTERVAL_S = 8.0
FEW_PEERS_INTERVAL_S = 2.0
WALK_TIMEOUT_S = 3.0
# py-ipv8 asks its peers all the time, which would be half of what an idle node does.
SILENCE_S = 55.0  # a peer that was silent for so long is asked whether it lives, and then once more
PING_INTERVAL_S = 30.0
DROP_S = 115.0
DHT_PING_INTERVAL_S = 45.0  # below the 60 s after which DHT nodes forget where we are (dht/discovery.py)
MAX_PEERS = 60
ENOUGH_PEERS = 4
MAX_INTRODUCED = 1000  # addresses that we were told of and never walked to

MAX_DHT_PEERS = 30
DHT_ASK_AGAIN_S = 30.0
# A DHT node takes two questions a second of another (py-ipv8's dht/routing.py), drops the others, and is then taken for
# dead. An announcement is some 18 questions, as is a look-up: so announcements take half of what nodes take of us, and
# look-ups for others a half. We look a swarm up for ourselves when we begin to introduce it, which can wait.
QUESTIONS_OF_AN_ANNOUNCEMENT = 18
MIN_ANNOUNCE_PAUSE_S, MAX_ANNOUNCE_PAUSE_S = 0.25, 3.0
MOST_CRAWLS_PER_S, BURST_S = 5.0, 10.0  # look-ups for others; a burst may have as many as the rate allows in this time
PAUSES_BETWEEN_MEETINGS = 4  # an eighth of what nodes take
# The most swarms whose other introduction points wait to be met: as many as seeders may be introduced, so that whoever
# has us introduce one after another, and leaves each, makes no longer queue.
MAX_UNMET = 1024
PUBLIC_KEY_PREFIX = b"LibNaCLPK:"  # the beginning of a key that the DHT's records leave out

logger = logging.getLogger(__name__)


class IntroductionPointDht(DHTCommunityProvider):
    """py-ipv8's provider, which says whether an announcement was stored.

    A cell of a stranger is enough for a look-up, which is some twenty packets: so there are as many a second as the
    nodes that are known can answer, and no more.
    """

    def __init__(self, dht_community: CarefulDht, port: int) -> None:
        super().__init__(dht_community, port)
        self._crawls = TokenBucket()

    @property
    def announce_pause_s(self) -> float:
        """Return the seconds to leave between announcements: the fewer nodes are known, the more each is asked."""
        pause_s = QUESTIONS_OF_AN_ANNOUNCEMENT / max(1, len(self.dht_community.nodes()))
        return min(max(pause_s, MIN_ANNOUNCE_PAUSE_S), MAX_ANNOUNCE_PAUSE_S)

    def _may_crawl(self) -> bool:
        per_s = min(max(1, len(self.dht_community.nodes())) / QUESTIONS_OF_AN_ANNOUNCEMENT, MOST_CRAWLS_PER_S)
        if self._crawls.spend(per_s, max(1.0, BURST_S * per_s), time.monotonic()):
            return True
        self.dht_community.counters[DropReason.DHT_CRAWL_TOO_OFTEN] += 1
        return False

    async def lookup(self, info_hash: bytes) -> tuple[bytes, list[IntroductionPoint]] | None:
        return await super().lookup(info_hash) if self._may_crawl() else None

    async def announce(self, info_hash: bytes, intro_point: IntroductionPoint) -> bool:
        record = DHTIntroPointPayload(
            intro_point.peer.address,
            int(time.time()),
            intro_point.peer.public_key.key_to_bin()[len(PUBLIC_KEY_PREFIX) :],
            intro_point.seeder_pk[len(PUBLIC_KEY_PREFIX) :],
        )
        try:
            await self.dht_community.store_value(info_hash, default_serializer.pack_serializable(record))
        except (DHTError, TypeError) as error:  # TypeError: the DHT is being unloaded
            logger.info("An introduction point is not announced yet: %s", error)
            return False
        return True


class Discovery(TaskManager):
    """Walks for a tunnel community and for the overlays beside it, which it unloads with it.

    To py-ipv8's HiddenTunnelCommunity this is its IPv8 object (ipv8_service.py): there it
    registers the PexCommunity of each swarm that it is an introduction point for.
    """

    def __init__(self, community: NodeCommunity, config: OverlayConfig) -> None:
        super().__init__()
        self.overlays: list[Community] = [community]
        self.strategies: list[tuple[DiscoveryStrategy[Any], int]] = []
        self._community = community
        self._config = config
        self._walk = RandomWalk(community, timeout=WALK_TIMEOUT_S)
        self._churn = RandomChurn(
            community, 2 * MAX_PEERS, ping_interval=PING_INTERVAL_S, inactive_time=SILENCE_S, drop_time=DROP_S
        )
        self._dht: CarefulDht | None = None
        self._unmet: deque[tuple[PexCommunity, bytes]] = deque(maxlen=MAX_UNMET)
        self._dht_asked = Recent[Peer](DHT_ASK_AGAIN_S)
        community.ipv8 = self
        community.bootstrappers += make_bootstrappers(config)

    def start(self) -> None:
        if PEER_FLAG_RELAY in self._config.peer_flags:
            self._open_dht()
        for address in {*self._config.known_peers, *self._config.bootstrap}:
            self._community.walk_to(UDPv4Address(*address))
        register_endless(self._community, "discover", self._discover)

    async def close(self) -> None:
        """Unload everything beside the tunnel community."""
        await self.shutdown_task_manager()
        self.strategies.clear()
        for overlay in self.overlays[1:]:
            await overlay.unload()
        del self.overlays[1:]

    # What py-ipv8 asks of an IPv8 object

    def add_strategy(self, overlay: Community, strategy: DiscoveryStrategy[Any], target_peers: int) -> None:
        """Walk for this overlay, too, until it has so many peers; -1: always."""
        if overlay not in self.overlays:
            self.overlays.append(overlay)
            if isinstance(overlay, PexCommunity):
                self._open_pex(overlay)
        self.strategies.append((strategy, target_peers))

    def _open_pex(self, pex: PexCommunity) -> None:
        """Meet the swarm's other introduction points through the DHT; py-ipv8 always asks its own servers."""
        pex.bootstrappers = [
            made for made in make_bootstrappers(self._config) if isinstance(made, DispersyBootstrapper)
        ]
        _estimate_as(pex, self._community)
        info_hash = (int.from_bytes(pex.community_id, "big") - 1).to_bytes(20, "big")

        if self._dht is not None:
            self._unmet.append((pex, info_hash))
            if not self.is_pending_task_active("meet introduction points"):
                self.register_task("meet introduction points", self._meet_in_turn)

    async def _meet_in_turn(self) -> None:
        """Look one swarm after another up, and walk to its other introduction points."""
        while self._unmet:
            pex, info_hash = self._unmet.popleft()
            if pex not in self.overlays:
                continue
            try:
                found = await self._community.dht_lookup(info_hash)
            except Exception as error:  # a swarm that can't be looked up does not keep us from the next
                logger.debug("The introduction points of a swarm are not met: %s", error)
                found = None
            for point in found[1] if found is not None else ():
                if point.peer.public_key != self._community.my_peer.public_key:
                    pex.walk_to(point.peer.address)
            await asyncio.sleep(PAUSES_BETWEEN_MEETINGS * self._community.dht_provider.announce_pause_s)

    # The DHT

    def _open_dht(self) -> None:
        community = self._community
        settings = CarefulDhtSettings(my_peer=community.my_peer, endpoint=community.endpoint, network=community.network)
        settings.may_contact, settings.counters = community.may_contact, community.counters
        self._dht = CarefulDht(settings)
        self._dht.replace_task("ping_all", self._dht.ping_all, interval=DHT_PING_INTERVAL_S)
        _estimate_as(self._dht, self._community)
        self._dht.bootstrappers += make_bootstrappers(self._config)
        community.dht_provider = IntroductionPointDht(self._dht, community.endpoint.get_address()[1])
        self.overlays.append(self._dht)

    def _find_dht_peers(self, dht: CarefulDht) -> None:
        """Walk to a node that relays, since it is in the DHT as well, at the same address."""
        known = dht.get_peers()
        if len(known) >= MAX_DHT_PEERS:
            return
        now_s = time.monotonic()
        peers = (peer for peer in self._community.get_peers() if peer not in known)
        unasked = [peer for peer in peers if not self._dht_asked.has(peer, now_s)]
        if unasked:
            peer = random.choice(unasked)
            self._dht_asked.add(peer, now_s)
            dht.walk_to(peer.address)
        elif not known:
            dht.bootstrap()

    # Steps

    async def _discover(self) -> None:
        """Walk step after step, less and less often while nothing is missing and nobody new is met."""
        pause_s = WALK_INTERVAL_S
        met: set[Peer] = set()
        while True:
            self._step()
            await asyncio.sleep(pause_s)
            known = set(self._community.get_peers())
            if self._community.is_missing_circuits() or (len(known) < TARGET_PEERS and not known <= met):
                pause_s = WALK_INTERVAL_S
            else:
                longest_s = FEW_PEERS_INTERVAL_S if len(known) < ENOUGH_PEERS else CALM_INTERVAL_S
                pause_s = min(2 * pause_s, longest_s)
            met = known

    def _step(self) -> None:
        community = self._community
        known = community.get_peers()
        # The nodes of a private network are all kept, as long as there is room: they may be all that there are.
        peers = {peer for peer in known if not is_inner(peer.address[0])}
        exits = peers.intersection(community.get_candidates(PEER_FLAG_EXIT_BT))
        if len(known) < ENOUGH_PEERS or not community.candidates:
            community.bootstrap()
        if wants_more(exits, peers - exits):
            self._walk.take_step()
        if len(unknown := community.network.get_walkable_addresses(community.community_id)) > MAX_INTRODUCED:
            for address in unknown:
                community.network.remove_by_address(address)
        if too_many := surplus(exits, peers - exits) - community.first_hops():
            let_go = random.choice(list(too_many))
            community.network.remove_peer(let_go)
            self._churn._pinged.pop(let_go.address, None)  # noqa: SLF001 - else it would stay there for ever
        self._churn.take_step()
        if self._dht is not None:
            self._find_dht_peers(self._dht)
        for strategy, target_peers in self.strategies:
            if target_peers == -1 or strategy.get_peer_count() < target_peers:
                strategy.take_step()


def _estimate_as(overlay: Community, community: Community) -> None:
    """Take the community's estimate of our address for the overlay, as both share the socket."""
    overlay.cancel_pending_task("discover_lan_addresses")
    overlay.my_estimated_lan, overlay.my_estimated_wan = community.my_estimated_lan, community.my_estimated_wan
