"""The child's way of datagrams between clients and circuits, for either engine.

Clients are met on the sockets of the SOCKS5 server's associations where the
main process hands those over, and on the data stream in any case.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.child.association import ServedAssociation
from tunnel_pool.overlay.clients.clients import Clients
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.lanes import Lane, is_announced, lane_of
from tunnel_pool.rpc.descriptors import DATA_IN, DATA_OUT
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.streams import DatagramReader, DatagramWriter, enlarge_pipe
from tunnel_pool.socks5.address import ANY, encode_address
from tunnel_pool.socks5.messages import ReplyCode, reply

if TYPE_CHECKING:
    from tunnel_pool.packet_engine.endpoint import NativeEndpoint


class DataPath(Protocol):
    """Moves datagrams; what it drops is counted."""

    def counters(self) -> Counter[str]: ...

    def circuit_removed(self, circuit_id: int) -> None: ...

    def associate(self, association_id: int, sock: socket.socket, lane: Lane, client: tuple[str, int]) -> None:
        """Serve the client on this socket, which is ours from now on."""

    def dissociate(self, association_id: int) -> None: ...

    def open_stream(self, sock: socket.socket, lane: Lane, destination: bytes, early: bytes) -> None:
        """Lead a SOCKS5 client's connection, ours from now on, through a circuit to a destination (RFC 1928, 5)."""

    def set_usual(self, association_id: int) -> None:
        """Give this association what no client of its lane asked for."""

    def pin(self, association_id: int, destination: bytes, circuit_id: int) -> None:
        """Have what the client sends to a destination (RFC 1928, 5) go over this circuit from now on."""

    def steer(self, association_id: int, datagram: bytes) -> None:
        """Treat a datagram as if it had come to the association's socket."""


class PythonDataPath:
    """Moves datagrams through the community, one by one."""

    def __init__(self, community: LocalTunnelCommunity, on_lost: Callable[[str], object]) -> None:
        loop = asyncio.get_running_loop()
        self._community = community
        self._counters = Counter[str]()
        self._associations: dict[int, ServedAssociation] = {}
        self._clients = Clients()
        self._writer = DatagramWriter(DATA_OUT, loop)
        self._reader = DatagramReader(DATA_IN, loop, self._from_main, on_lost)
        community.on_datagram = self._from_circuit

    def counters(self) -> Counter[str]:
        return self._counters + Counter(data_out_full=self._writer.dropped)

    def circuit_removed(self, circuit_id: int) -> None:
        self._clients.forget_circuit(circuit_id)
        for association in self._associations.values():
            if orphans := association.forget_circuit(circuit_id):
                self._community.on_orphans(association.lane, orphans)

    def associate(self, association_id: int, sock: socket.socket, lane: Lane, client: tuple[str, int]) -> None:
        self.dissociate(association_id)
        asked = partial(self._clients.asked, association_id=association_id)
        self._associations[association_id] = ServedAssociation(
            sock, lane, client, self._community, self._counters, asked=asked
        )

    def dissociate(self, association_id: int) -> None:
        association = self._associations.pop(association_id, None)
        if association is not None:
            association.close()

    def open_stream(self, sock: socket.socket, lane: Lane, destination: bytes, early: bytes) -> None:
        """Turn the client away: the Python engine carries no streams."""
        with sock:
            sock.send(reply(ReplyCode.NETWORK_UNREACHABLE, encode_address(ANY.host, ANY.port)))
        self._counters[DropReason.STREAM_NO_CIRCUIT] += 1

    def set_usual(self, association_id: int) -> None:
        if association_id in self._associations:
            self._clients.set_usual(self._associations[association_id].lane, association_id)

    def pin(self, association_id: int, destination: bytes, circuit_id: int) -> None:
        association = self._associations.get(association_id)
        circuit = self._community.circuits.get(circuit_id)
        if association is not None and circuit is not None and lane_of(circuit) == association.lane:
            association.pin(destination, circuit_id)

    def steer(self, association_id: int, datagram: bytes) -> None:
        association = self._associations.get(association_id)
        if association is not None:
            association.carry(datagram)

    def _from_main(self, circuit_id: int, address: bytes, payload: bytes) -> None:
        if circuit_id in self._community.circuits:
            self._community.send_datagram(circuit_id, address, payload)
        else:
            self._counters[DropReason.DATA_IN_UNKNOWN_CIRCUIT] += 1

    def _is_asked(self, circuit: Circuit, address: bytes) -> bool:
        """Return whether a client sends to this encoded address over the circuit."""
        return any(known.carries(address, circuit.circuit_id) for known in self._associations.values())

    def _from_circuit(self, circuit: Circuit, address: bytes, data: bytes) -> None:
        lane = lane_of(circuit)
        of_lane = [known for known, association in self._associations.items() if association.lane == lane]
        chosen = self._clients.for_answer(lane, of_lane, circuit.circuit_id, address)
        is_stranger = is_announced(circuit) and not self._is_asked(circuit, address)
        if chosen is not None and not is_stranger:
            self._associations[chosen].deliver(address, data)
            return
        try:
            self._writer.send(circuit.circuit_id, address, data)
        except ValueError:  # a name too long for a frame
            self._counters[DropReason.ORIGIN_MALFORMED] += 1


class NativeDataPath:
    """Lets the native engine move the datagrams; its drops are the community's."""

    def __init__(self, endpoint: "NativeEndpoint", on_lost: Callable[[str], object]) -> None:
        self._engine = endpoint.engine
        endpoint.on_stream_lost = endpoint.on_failed = on_lost
        self._engine.attach_stream(DATA_IN, DATA_OUT)

    def counters(self) -> Counter[str]:
        return Counter()

    def circuit_removed(self, circuit_id: int) -> None:
        """Do nothing: the engine itself reports the destinations that lose their circuit."""

    def associate(self, association_id: int, sock: socket.socket, lane: Lane, client: tuple[str, int]) -> None:
        with sock:
            self._engine.add_association(association_id, sock.fileno(), lane.pack(), client)

    def dissociate(self, association_id: int) -> None:
        self._engine.remove_association(association_id)

    def open_stream(self, sock: socket.socket, lane: Lane, destination: bytes, early: bytes) -> None:
        with sock:
            self._engine.open_stream(sock.fileno(), lane.pack(), destination, early)

    def set_usual(self, association_id: int) -> None:
        self._engine.set_usual(association_id)

    def pin(self, association_id: int, destination: bytes, circuit_id: int) -> None:
        self._engine.pin(association_id, destination, circuit_id)

    def steer(self, association_id: int, datagram: bytes) -> None:
        self._engine.client_datagram(association_id, datagram)


def open_data_path(community: LocalTunnelCommunity, on_lost: Callable[[str], object]) -> DataPath:
    """Open the data path of the community's engine; `on_lost` hears why no datagram can come any more."""
    enlarge_pipe(DATA_OUT)
    if community.native is not None:
        return NativeDataPath(community.native, on_lost)
    return PythonDataPath(community, on_lost)
