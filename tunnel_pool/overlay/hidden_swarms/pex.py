"""The overlay of a hidden swarm's introduction points (py-ipv8's PEX), by this project's rules of introduction."""

from collections import Counter
from typing import Any

from ipv8.messaging.anonymization.pex import PexCommunity, PexSettings

from tunnel_pool.overlay.peers.introductions import CarefulIntroductions, MayContact


class CarefulPexSettings(PexSettings):
    may_contact: MayContact
    counters: Counter[str]


class CarefulPex(CarefulIntroductions, PexCommunity):
    """Tells of its seeders who has answered it, and nobody else: up to ten keys make a packet five times as long."""

    def __init__(self, settings: CarefulPexSettings) -> None:
        self.counters = settings.counters
        self._asks_stranger = False
        super().__init__(settings)

    def create_introduction_request(self, socket_address: Any, *args: Any, **kwargs: Any) -> bytes:
        peer = self.network.get_verified_by_address(socket_address)
        self._asks_stranger = peer is None or peer.public_key.key_to_bin() not in self._answered
        try:
            return super().create_introduction_request(socket_address, *args, **kwargs)
        finally:
            self._asks_stranger = False

    def get_seeder_pks(self) -> bytes:
        packed: bytes = self.serializer.pack("varlenH-list", []) if self._asks_stranger else super().get_seeder_pks()
        return packed
