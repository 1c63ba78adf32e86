"""The load of benchmarks: datagrams of one size, in trains that the kernel cuts (UDP_SEGMENT, udp(7))."""

import socket
import struct
from collections.abc import Iterator
from itertools import pairwise

PAYLOAD_BYTES = 1300
DATAGRAM = b"d" + bytes(PAYLOAD_BYTES - 2) + b"e"  # an exit takes it for a DHT message
TRAIN = 40
UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h
RECEIVE_BYTES = 1 << 16


def send_train(sock: socket.socket, to: tuple[str, int], datagram: bytes, number: int) -> None:
    """Send the same datagram so often."""
    segment = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("@H", len(datagram)))]
    for start in range(0, number, TRAIN):
        sock.sendmsg([datagram * min(TRAIN, number - start)], segment, 0, to)


def waiting(sock: socket.socket, size: int) -> Iterator[bytes]:
    """Yield the datagrams of this size that wait at a socket with UDP_GRO; a train's last may be shorter."""
    try:
        while True:
            data = sock.recv(RECEIVE_BYTES)
            yield from (data[start:end] for start, end in pairwise([*range(0, len(data), size), len(data)]))
    except BlockingIOError:
        return
