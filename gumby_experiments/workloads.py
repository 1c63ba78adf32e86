"""Work in which instructions are counted: so much of it, without sockets, clocks or threads.

python -m tunnel_pool.gumby_experiments.workloads NAME NUMBER [--burden PERCENT] [--counted]

With --counted, under valgrind --tool=callgrind --instr-atstart=no: only the work itself is counted. With a
burden of 10, ten of a hundred things are done twice: what counts must see that.
"""

import argparse
import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import CellPayload
from ipv8.messaging.anonymization.tunnel import BACKWARD, FORWARD, Circuit, Hop, RelayRoute
from ipv8.messaging.interfaces.endpoint import Endpoint
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.addresses import pack_address
from tunnel_pool.overlay.wire.crypto_endpoint import DATA_MESSAGE, DataCellEndpoint
from tunnel_pool.overlay.wire.session_keys import SessionKeys
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc import data, framing
from tunnel_pool.rpc.sync import CircuitState, PeerState, Snapshot, SyncEncoder, SyncState
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import join_udp_request, split_udp_request

PREFIX = b"\0\2" + bytes(20)
OURS, THEIRS = 0x01000001, 0x02000002
PAYLOAD = b"d1:" + bytes(1296) + b"e"
SECRET = bytes(64)
CIRCUITS = 16
Work = Callable[[], object]


class _Nowhere(Endpoint):
    """Takes what is sent, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def assert_open(self) -> None: ...
    def is_open(self) -> bool:
        return True

    def get_address(self) -> Any:
        return UDPv4Address("127.0.0.1", 1)

    def send(self, socket_address: Any, packet: bytes) -> None:
        self.sent += 1

    async def open(self) -> bool:
        return True

    def close(self) -> None: ...
    def reset_byte_counters(self) -> None: ...


def _endpoint() -> DataCellEndpoint:
    endpoint = DataCellEndpoint(_Nowhere(), Counter())
    endpoint.prefix = PREFIX
    return endpoint


def _hop() -> Hop:
    peer = Peer(default_eccrypto.generate_key("curve25519").pub(), UDPv4Address("198.51.100.1", 1))
    return Hop(peer, SessionKeys.derived_from(SECRET))


def _sends_one(endpoint: DataCellEndpoint, work: Work) -> Work:
    """Return the work with a check after it that one packet was sent."""
    nowhere = endpoint.endpoint

    def do() -> None:
        before = nowhere.sent
        work()
        assert nowhere.sent == before + 1, endpoint.dropped()

    return do


_MESSAGE = DATA_MESSAGE + pack_address("8.8.8.8", 80) + pack_address("0.0.0.0", 0) + PAYLOAD  # noqa: S104


def python_relay(number: int) -> list[Work]:
    """Return the work of relaying a cell in the Python engine, which takes one layer off."""
    endpoint, keys = _endpoint(), SessionKeys.derived_from(SECRET)
    endpoint.relays[OURS] = RelayRoute(THEIRS, _hop(), FORWARD)
    endpoint.relays[THEIRS] = RelayRoute(OURS, _hop(), BACKWARD)
    cells = [CellPayload(OURS, keys.encrypt_str(_MESSAGE, FORWARD)).to_bin(PREFIX) for _ in range(number)]
    source = ("198.51.100.2", 2)
    return [_sends_one(endpoint, lambda cell=cell: endpoint.on_packet((source, cell))) for cell in cells]  # type: ignore[misc]


def python_originate(number: int) -> list[Work]:
    """Return the work of sealing a cell for three hops in the Python engine."""
    endpoint = _endpoint()
    circuit = Circuit(OURS, 3)
    for _ in range(3):
        circuit.add_hop(_hop())
    endpoint.circuits[OURS] = circuit
    target = ("198.51.100.1", 1)
    return [_sends_one(endpoint, lambda: endpoint.send_cell(target, CellPayload(OURS, _MESSAGE)))] * number


def data_stream(number: int) -> list[Work]:
    """Return the work of putting a datagram onto the data stream and taking it off."""
    decoder, address = data.DataDecoder(), encode_address("8.8.8.8", 80)
    return [lambda: decoder.feed(data.encode(OURS, address, PAYLOAD))] * number


def socks5_datagram(number: int) -> list[Work]:
    """Return the work of putting a datagram's SOCKS5 header on and taking it off."""
    address = encode_address("8.8.8.8", 80)
    return [lambda: split_udp_request(join_udp_request(address, PAYLOAD))] * number


def control_call(number: int) -> list[Work]:
    """Return the work of putting a heartbeat into a frame and taking it out."""
    decoder = framing.FrameDecoder()

    def call() -> None:
        frame = framing.encode(framing.Kind.REQUEST, 7, pb.Request(heartbeat=pb.Heartbeat()).SerializeToString())
        for received in decoder.feed(frame):
            pb.Request.FromString(received.body)

    return [call] * number


def sync(number: int) -> list[Work]:
    """Return the work of an RPC_SYNC of a busy child: all circuits' counters have changed."""
    hop = PeerState(bytes(74), "198.51.100.1", 7000, (1, 2))
    encoder, state = SyncEncoder(), SyncState()

    def work(at: int) -> None:
        circuits = {
            OURS + place: CircuitState(OURS + place, 3, "DATA", (hop,) * 3, bytes_up=at * 1300, bytes_down=at * 1300)
            for place in range(CIRCUITS)
        }
        frame = encoder.encode(Snapshot(circuits=circuits))
        assert frame is not None
        state.apply(pb.Sync.FromString(frame.SerializeToString()))

    return [lambda at=at: work(at + 1) for at in range(number)]  # type: ignore[misc]


def nothing(number: int) -> list[Work]:
    """Return work that does nothing: what counting itself costs is measured by it."""
    return [lambda: None] * number


NOTHING = nothing.__name__
WORKLOADS: dict[str, Callable[[int], list[Work]]] = {
    made.__name__: made
    for made in (python_relay, python_originate, data_stream, socks5_datagram, control_call, sync, nothing)
}


@contextmanager
def _counting(counted: bool) -> Any:
    if counted:
        _tell_callgrind("--instr=on")
    yield
    if counted:
        _tell_callgrind("--instr=off")


def _tell_callgrind(what: str) -> None:
    command = ["callgrind_control", what, str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*WORKLOADS])
    parser.add_argument("number", type=int)
    parser.add_argument("--burden", type=int, default=0)
    parser.add_argument("--counted", action="store_true")
    arguments = parser.parse_args()
    carried = arguments.number * (100 + arguments.burden) // 100
    work = WORKLOADS[arguments.name](carried + 1)
    work.pop(0)()  # the first piece of work makes what all the others use
    gc.disable()
    with _counting(arguments.counted):
        for each in work:
            each()
    return 0


if __name__ == "__main__":
    sys.exit(main())
