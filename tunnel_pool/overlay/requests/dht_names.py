"""Finds nodes of BitTorrent's DHT that are known by name: through an exit, which resolves it.

libtorrent would look the name up itself, past the tunnels. So a ping (BEP 5)
leaves an exit for the name, and whoever answers it is the node.
"""

import asyncio
import contextlib
import secrets

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.tunnel import DESTROY_REASON_UNNEEDED, PEER_FLAG_EXIT_BT, Circuit

from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.requests.dht_pings import answers, ping
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import encode_address

CIRCUIT_TYPE_DHT_NAME = "DHT_NAME"  # our own: for one question
ASK_AGAIN_S = 2.0
ASK_TIMES = 4
TRANSACTION_BYTES = 4


class DhtNames:
    """Finds nodes of BitTorrent's DHT by name, as a part of a tunnel community (overlay/community.py)."""

    def __init__(self, community: TunnelCommunity) -> None:
        self._community = community
        self._asked: dict[int, tuple[bytes, asyncio.Future[tuple[str, int]]]] = {}  # by circuit

    async def find(self, name: str, port: int, hops: int) -> tuple[str, int] | None:
        """Return the address from which the node with this name answers; None when it does not, or there is no exit.

        An invalid name counts as one that does not answer.
        """
        try:
            address = encode_address(name, port)
        except ValueError:
            return None
        circuit: Circuit | None = self._community.create_circuit(
            hops, CIRCUIT_TYPE_DHT_NAME, exit_flags=[PEER_FLAG_EXIT_BT]
        )
        if circuit is None or not await circuit.ready:
            return None
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        answered: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._asked[circuit.circuit_id] = transaction, answered
        question = ping(transaction, secrets.token_bytes(20))
        try:
            for _ in range(ASK_TIMES):
                self._community.send_datagram(circuit.circuit_id, address, question)
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(answered), ASK_AGAIN_S)
            return None
        finally:
            del self._asked[circuit.circuit_id]
            self._community.remove_circuit(circuit.circuit_id, "asked", destroy=DESTROY_REASON_UNNEEDED)

    def answered(self, circuit: Circuit, origin: tuple[str, int], data: bytes) -> None:
        """Take a datagram that came over a circuit which carries no client's datagrams."""
        asked = self._asked.get(circuit.circuit_id)
        is_address = is_allowed_destination(origin[0], origin[1], self._community.allow_private)
        # An exit could answer with a name, for us to look up, or with a neighbour of ours.
        if asked is None or not is_address or not answers(data, asked[0]):
            self._community.counters[DropReason.CIRCUIT_DATAGRAM_REFUSED] += 1
        elif not asked[1].done():
            asked[1].set_result((origin[0], origin[1]))
