"""The way of an anonymous libtorrent session into BitTorrent's DHT."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.overlay.ground.destinations import is_address
from tunnel_pool.overlay.ground.lanes import Lane

DHT_RETRY_S = 1.0
DHT_AGAIN_S = 10.0


class DhtSession(Protocol):
    def add_dht_node(self, node: Address) -> None: ...

    def ask_dht(self) -> None: ...


class DhtEntry:
    """Tells libtorrent of the first nodes, again and again: what it sends while there is no circuit is lost."""

    def __init__(self, tunnels: Tunnels, lane: Lane, session: DhtSession, nodes: Sequence[Address]) -> None:
        """`nodes` are where the DHT is entered, by address or name."""
        self._tunnels = tunnels
        self._lane = lane
        self._session = session
        self._nodes = nodes

    async def keep(self) -> None:
        """Keep the session in the DHT until this is cancelled."""
        entries: dict[Address, Address] = {}
        while True:
            if self._tunnels.circuits_for_new_peers(*self._lane):
                for node in self._nodes:
                    address = entries.get(node) or await self._address(node)
                    if address is not None:
                        entries[node] = address
                        self._session.add_dht_node(address)
            await asyncio.sleep(DHT_RETRY_S)
            if entries:
                self._session.ask_dht()
                await asyncio.sleep(DHT_AGAIN_S)

    async def _address(self, node: Address) -> Address | None:
        return node if is_address(node[0]) else await self._tunnels.find_dht_node(node[0], node[1], self._lane.hops)
