"""The start of a node that knows nobody: addresses it is told of, or py-ipv8's own."""

import random
import time
from collections.abc import Iterable, Sequence

from ipv8.bootstrapping.bootstrapper_interface import Bootstrapper
from ipv8.bootstrapping.dispersy.bootstrapper import DispersyBootstrapper
from ipv8.community import Community
from ipv8.configuration import DISPERSY_BOOTSTRAPPER
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address

from tunnel_pool.overlay.ground.config import HostPort, OverlayConfig

BOOTSTRAP_RETRY_S = 1.0


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
        known = DISPERSY_BOOTSTRAPPER["init"]
        # The system's resolver would ask for names through any device.
        bootstrappers.append(DispersyBootstrapper(**{**known, **({"dns_addresses": []} if config.device else {})}))
    if config.bootstrap:
        bootstrappers.append(StaticBootstrapper(config.bootstrap))
    return bootstrappers
