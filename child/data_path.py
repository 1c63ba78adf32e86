"""The child's end of the data stream, for either engine."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ipv8.messaging.anonymization.tunnel import Circuit

from overlay.community import NOWHERE, PoolTunnelCommunity
from rpc.descriptors import DATA_IN, DATA_OUT
from rpc.streams import DatagramReader, DatagramWriter, enlarge_pipe
from socks5.address import Socks5Error, decode_address, encode_address

if TYPE_CHECKING:
    from packet_engine.endpoint import NativeEndpoint


class DataPath(Protocol):
    """Moves datagrams between the data stream and the circuits."""

    def counters(self) -> Counter[str]:
        """What was dropped on the way, by reason."""


class PythonDataPath:
    """Through the community, datagram by datagram."""

    def __init__(self, community: PoolTunnelCommunity, on_lost: Callable[[str], object]) -> None:
        loop = asyncio.get_running_loop()
        self._community = community
        self._counters = Counter[str]()
        self._writer = DatagramWriter(DATA_OUT, loop)
        self._reader = DatagramReader(DATA_IN, loop, self._from_main, on_lost)
        community.on_raw_data = self._from_circuit

    def counters(self) -> Counter[str]:
        return self._counters + Counter(data_out_full=self._writer.dropped)

    def _from_main(self, circuit_id: int, address: bytes, payload: bytes) -> None:
        circuit = self._community.circuits.get(circuit_id)
        if circuit is None:
            self._counters["data_in_unknown_circuit"] += 1
            return
        try:
            destination = decode_address(address)
        except Socks5Error:
            self._counters["data_in_malformed"] += 1
            return
        self._community.send_data(circuit.hop.address, circuit_id, destination[1:], NOWHERE, payload)

    def _from_circuit(self, circuit: Circuit, origin: tuple[str, int], data: bytes) -> None:
        try:
            self._writer.send(circuit.circuit_id, encode_address(origin[0], origin[1]), data)
        except ValueError:
            self._counters["data_in_malformed"] += 1


class NativeDataPath:
    """Inside the engine; its drops are the community's."""

    def __init__(self, endpoint: "NativeEndpoint", on_lost: Callable[[str], object]) -> None:
        endpoint.on_stream_lost = endpoint.on_failed = on_lost
        endpoint.engine.attach_stream(DATA_IN, DATA_OUT)

    def counters(self) -> Counter[str]:
        return Counter()


def open_data_path(community: PoolTunnelCommunity, on_lost: Callable[[str], object]) -> DataPath:
    """`on_lost` hears why no datagram can come any more."""
    enlarge_pipe(DATA_OUT)
    if community.native is not None:
        return NativeDataPath(community.native, on_lost)
    return PythonDataPath(community, on_lost)
