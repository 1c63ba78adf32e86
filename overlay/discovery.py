"""Finding peers: the tunnels' own, and those of the DHT and of swarms' PEX that hidden services need."""

import logging
import random
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ipv8.bootstrapping.bootstrapper_interface import Bootstrapper
from ipv8.bootstrapping.dispersy.bootstrapper import DispersyBootstrapper
from ipv8.community import Community, CommunitySettings
from ipv8.configuration import DISPERSY_BOOTSTRAPPER
from ipv8.dht import DHTError
from ipv8.dht.discovery import DHTDiscoveryCommunity
from ipv8.dht.provider import DHTCommunityProvider, DHTIntroPointPayload
from ipv8.messaging.anonymization.pex import PexCommunity
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY, IntroductionPoint
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.messaging.serialization import default_serializer
from ipv8.peer import Peer
from ipv8.peerdiscovery.churn import RandomChurn
from ipv8.peerdiscovery.discovery import DiscoveryStrategy, RandomWalk
from ipv8.taskmanager import TaskManager

from overlay.backoff import Recent
from overlay.config import HostPort, OverlayConfig

if TYPE_CHECKING:
    from overlay.community import PoolTunnelCommunity

WALK_INTERVAL_S = 0.5
WALK_TIMEOUT_S = 3.0
MAX_PEERS = 60
BOOTSTRAP_RETRY_S = 1.0
ENOUGH_PEERS = 4
MAX_INTRODUCED = 1000  # addresses that we were told of and never walked to

MAX_DHT_PEERS = 30
DHT_ASK_AGAIN_S = 30.0
PUBLIC_KEY_PREFIX = b"LibNaCLPK:"  # which the DHT's records leave out

logger = logging.getLogger(__name__)


class StaticBootstrapper(Bootstrapper):
    """Ordinary peers at known addresses: asked again until enough peers are known."""

    def __init__(self, addresses: Iterable[HostPort]) -> None:
        super().__init__()
        self._addresses = [UDPv4Address(*address) for address in addresses]
        self._last_walk = 0.0

    async def initialize(self, overlay: Community) -> bool:
        self.initialized = True
        return True

    async def get_addresses(self, overlay: Community, timeout: float) -> list[UDPv4Address]:
        now = time.monotonic()
        if now - self._last_walk < BOOTSTRAP_RETRY_S:
            return []
        self._last_walk = now
        return random.sample(self._addresses, len(self._addresses))

    def keep_alive(self, overlay: Community) -> None:
        if self._addresses:
            overlay.walk_to(random.choice(self._addresses))

    def blacklist(self) -> Sequence[UDPv4Address]:
        return ()

    def unload(self) -> None:
        pass


def make_bootstrappers(config: OverlayConfig) -> list[Bootstrapper]:
    bootstrappers: list[Bootstrapper] = []
    if config.bootstrap_default:
        bootstrappers.append(DispersyBootstrapper(**DISPERSY_BOOTSTRAPPER["init"]))
    if config.bootstrap:
        bootstrappers.append(StaticBootstrapper(config.bootstrap))
    return bootstrappers


class IntroductionPointDht(DHTCommunityProvider):
    """py-ipv8's provider, which says whether an announcement was stored."""

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

    def __init__(self, community: "PoolTunnelCommunity", config: OverlayConfig) -> None:
        super().__init__()
        self.overlays: list[Community] = [community]
        self.strategies: list[tuple[DiscoveryStrategy[Any], int]] = []
        self._community = community
        self._config = config
        self._walk = RandomWalk(community, timeout=WALK_TIMEOUT_S)
        self._churn = RandomChurn(community)
        self._dht: DHTDiscoveryCommunity | None = None
        self._dht_asked = Recent[Peer](DHT_ASK_AGAIN_S)
        community.ipv8 = self
        community.bootstrappers += make_bootstrappers(config)

    def start(self) -> None:
        if PEER_FLAG_RELAY in self._config.peer_flags:
            self._open_dht()
        for address in {*self._config.known_peers, *self._config.bootstrap}:
            self._community.walk_to(UDPv4Address(*address))
        self._community.register_task("discover", self._step, interval=WALK_INTERVAL_S, delay=0)

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
        """Other introduction points of the swarm are in the DHT; py-ipv8 always asks its own servers."""
        pex.bootstrappers = [
            made for made in make_bootstrappers(self._config) if isinstance(made, DispersyBootstrapper)
        ]
        _estimate_as(pex, self._community)
        info_hash = (int.from_bytes(pex.community_id, "big") - 1).to_bytes(20, "big")

        async def meet() -> None:
            for point in (await self._community.dht_lookup(info_hash) or (b"", ()))[1]:
                if point.peer.public_key != self._community.my_peer.public_key:
                    pex.walk_to(point.peer.address)

        if self._dht is not None:
            self.register_anonymous_task("meet introduction points", meet, ignore=(Exception,))

    # The DHT

    def _open_dht(self) -> None:
        settings = CommunitySettings(
            my_peer=self._community.my_peer, endpoint=self._community.endpoint, network=self._community.network
        )
        self._dht = DHTDiscoveryCommunity(settings)
        _estimate_as(self._dht, self._community)
        self._dht.bootstrappers += make_bootstrappers(self._config)
        self._community.dht_provider = IntroductionPointDht(self._dht, self._community.endpoint.get_address()[1])
        self.overlays.append(self._dht)

    def _find_dht_peers(self, dht: DHTDiscoveryCommunity) -> None:
        """Nodes that relay are in the DHT as well, at the same address."""
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

    def _step(self) -> None:
        community = self._community
        known = len(community.get_peers())
        if known < ENOUGH_PEERS or not community.candidates:
            community.bootstrap()
        if known < MAX_PEERS // 2:
            self._walk.take_step()
        elif len(unknown := community.network.get_walkable_addresses(community.community_id)) > MAX_INTRODUCED:
            for address in unknown:
                community.network.remove_by_address(address)
        self._churn.take_step()
        if self._dht is not None:
            self._find_dht_peers(self._dht)
        for strategy, target_peers in self.strategies:
            if target_peers == -1 or strategy.get_peer_count() < target_peers:
                strategy.take_step()


def _estimate_as(overlay: Community, community: Community) -> None:
    """They share the socket, so what is known of our address holds for both."""
    overlay.my_estimated_lan, overlay.my_estimated_wan = community.my_estimated_lan, community.my_estimated_wan
