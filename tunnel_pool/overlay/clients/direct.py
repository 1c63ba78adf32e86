"""The native engine of this process reads the associations of SOCKS5 clients itself."""

import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.end_to_end import steering_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import that_reach
from tunnel_pool.socks5.address import Socks5Address, encode_address
from tunnel_pool.socks5.messages import join_udp_request
from tunnel_pool.socks5.server import Association
from tunnel_pool.socks5.steering import BUCKETS, program
from tunnel_pool.steering.group import ReusePortGroup

logger = logging.getLogger(__name__)


class DirectCarrier:
    """Lets an engine (packet_engine/_native.pyi) read each association's socket (tunnel_pool.socks5.carrier)."""

    def __init__(self, engine: Any, lane: Lane, circuits: Mapping[int, Circuit], announced: bool = False) -> None:
        """Leave questions to trackers and DHT nodes to the server, when the lane is `announced`."""
        self.drops: Counter[str] = Counter()
        self._engine = engine
        self._lane = lane
        self._circuits = circuits
        self._announced = announced
        self._carried: set[int] = set()

    def opened(self, association: Association) -> None:
        assert association.client is not None
        try:
            fileno = self._share(association.group) if self._announced else association.fileno()
            self._engine.add_association(association.id, fileno, self._lane.pack(), association.client)
        except OSError as error:
            logger.warning("A client is served the slow way: %s", error)
            return
        if not self._announced:
            association.stop_reading()
        self._carried.add(association.id)

    def _share(self, group: ReusePortGroup | None) -> int:
        """Return a socket of the association's port that gets all but questions. Raises OSError."""
        if group is None:
            raise OSError("the association's port can't be shared")
        index = group.add()
        group.steer(program([index] * BUCKETS, len(group.sockets), steering_of(self._lane), {}))
        return group.sockets[index].fileno()

    async def pin(self, association: Association, address: bytes, circuit_id: int) -> bool:
        if association.id not in self._carried:
            return False
        self._engine.pin(association.id, address, circuit_id)
        return True

    def usual(self, association: Association) -> None:
        if association.id in self._carried:
            self._engine.set_usual(association.id)

    def take(self, association: Association, address: bytes, payload: bytes) -> bool:
        if association.id not in self._carried:
            return False
        self._engine.client_datagram(association.id, join_udp_request(address, payload))
        return True

    def closed(self, association: Association) -> None:
        if association.id in self._carried:
            self._carried.discard(association.id)
            self._engine.remove_association(association.id)

    def has_streams(self, address: Socks5Address) -> bool:
        return bool(that_reach(self._circuits.values(), self._lane, address))

    def open_stream(self, sock: socket.socket, address: Socks5Address, early: bytes) -> None:
        with sock:
            destination = encode_address(address.host, address.port)
            self._engine.open_stream(sock.fileno(), self._lane.pack(), destination, early)

    def end(self) -> None: ...
