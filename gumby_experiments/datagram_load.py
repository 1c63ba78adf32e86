"""Datagrams through a SOCKS5 server and back: how many, how fast, and where each one's time goes.

python -m tunnel_pool.gumby_experiments.datagram_load echo HOST --ports N
python -m tunnel_pool.gumby_experiments.datagram_load load --socks PORT --echo HOST:PORT ... --window K --seconds S
python -m tunnel_pool.gumby_experiments.datagram_load probe --socks PORT --echo HOST:PORT --probes N

echo: sends back what it gets. load: to each echo's port (a circuit each) K datagrams are on their way at
any time. probe: one after the other, each of a length of its own, by which it is known wherever it passes this
machine's loopback: times there are the kernel's (SO_TIMESTAMPNS, packet(7)).
"""

import argparse
import json
import select
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START, split_udp_request

PAYLOAD_BYTES = 1300
BUFFER_BYTES = 1 << 22
LOST_S = 0.5  # without its answer for so long, a datagram is taken for lost, and another sent
FIRST_PROBE_BYTES, STEP_BYTES = 300, 3
PROBE_PAUSE_S = 0.004
ETH_P_IP = 0x0800  # linux/if_ether.h
SO_TIMESTAMPNS = 35  # asm-generic/socket.h


def datagram(size: int, number: int) -> bytes:
    """Return a datagram with its number in it, which an exit takes for a message of the DHT."""
    return b"d" + struct.pack("!I", number) + bytes(size - 6) + b"e"


def echo(arguments: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        socks = [stack.enter_context(_socket(arguments.host)) for _ in range(arguments.ports)]
        print(json.dumps({"echo": [sock.getsockname()[1] for sock in socks]}), flush=True)
        stdin = sys.stdin.fileno()
        by_descriptor = {sock.fileno(): sock for sock in socks}
        while True:
            ready, _, _ = select.select([*by_descriptor, stdin], [], [])
            if stdin in ready:
                return {}
            for descriptor in ready:
                with suppress(OSError):  # all have been read, or the way back is full
                    while True:
                        data, source = by_descriptor[descriptor].recvfrom(65535)
                        by_descriptor[descriptor].sendto(data, source)


def _socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.bind((host, 0))
    sock.setblocking(False)
    return sock


@contextmanager
def associated(port: int) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """Yield a UDP socket, and where its datagrams go (RFC 1928 section 7)."""
    with socket.create_connection(("127.0.0.1", port)) as tcp, _socket("127.0.0.1") as udp:
        tcp.sendall(b"\5\1\0")
        assert tcp.recv(2) == b"\5\0"
        tcp.sendall(b"\5\3\0" + encode_address(*udp.getsockname()))
        answer = tcp.recv(10)
        assert answer[:2] == b"\5\0", "no association"
        udp.connect((socket.inet_ntoa(answer[4:8]), int.from_bytes(answer[8:10], "big")))
        yield udp, udp.getpeername()


def load(arguments: argparse.Namespace) -> dict[str, Any]:
    heads = [UDP_HEADER_START + encode_address(host, port) for host, port in arguments.echo]
    took_s: list[float] = []
    with associated(arguments.socks) as (udp, _):
        sent_s: dict[int, float] = {}
        by_number: dict[int, int] = {}
        number = lost = 0

        def send(circuit: int) -> None:
            nonlocal number
            number += 1
            sent_s[number], by_number[number] = time.perf_counter(), circuit
            with suppress(BlockingIOError):
                udp.send(heads[circuit] + datagram(PAYLOAD_BYTES, number))

        begun_s = time.perf_counter()
        for circuit in range(len(heads)):
            for _ in range(arguments.window):
                send(circuit)
        while (now_s := time.perf_counter()) < begun_s + arguments.seconds:
            # The first is the oldest: what is sent again has a number of its own.
            while sent_s and now_s - sent_s[oldest := next(iter(sent_s))] > LOST_S:
                del sent_s[oldest]
                lost += 1
                send(by_number.pop(oldest))
            select.select([udp], [], [], LOST_S)
            with suppress(BlockingIOError):
                while True:
                    _, payload = split_udp_request(udp.recv(65535))
                    (answered,) = struct.unpack_from("!I", payload, 1)
                    if answered in sent_s:
                        took_s.append(time.perf_counter() - sent_s.pop(answered))
                        send(by_number.pop(answered))
        seconds = now_s - begun_s
    ordered = sorted(took_s)
    if not ordered:
        raise SystemExit("no datagram came back")
    return {
        "datagrams_per_s": len(ordered) / seconds,
        "mb_per_s": len(ordered) * PAYLOAD_BYTES / seconds / 1e6,
        "response_ms": 1000 * sum(ordered) / len(ordered),
        "response_p99_ms": 1000 * ordered[int(0.99 * len(ordered))],
        "lost": lost,
    }


class Sight(NamedTuple):
    """A UDP packet on loopback."""

    time_s: float
    source: tuple[str, int]
    destination: tuple[str, int]
    size: int


class Watcher:
    """Sees every UDP packet on this machine's loopback as it is received. Raises PermissionError but for root."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        self._sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._sock.bind(("lo", ETH_P_IP))
        self._sock.setblocking(False)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()

    def seen(self) -> Iterator[Sight]:
        """Yield the packets that were seen since the last call."""
        with suppress(BlockingIOError):
            while True:
                frame, ancillary, _, address = self._sock.recvmsg(128, 64)
                stamp = next((data for level, kind, data in ancillary if kind == SO_TIMESTAMPNS), None)
                if address[2] == socket.PACKET_OUTGOING or stamp is None or frame[23] != socket.IPPROTO_UDP:
                    continue
                seconds, nanoseconds = struct.unpack_from("@qq", stamp)
                ports = struct.unpack_from("!HHH", frame, 34)
                source, destination = socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34])
                yield Sight(seconds + nanoseconds / 1e9, (source, ports[0]), (destination, ports[1]), ports[2] - 8)


def probe(arguments: argparse.Namespace) -> dict[str, Any]:
    """`sights`: where each length was seen, in order; `client` and `socks` are addresses."""
    (target,) = arguments.echo
    head = UDP_HEADER_START + encode_address(*target)
    sights: dict[int, list[Sight]] = defaultdict(list)
    with Watcher() as watcher, associated(arguments.socks) as (udp, served):
        udp.send(head + datagram(FIRST_PROBE_BYTES - STEP_BYTES, 0))  # the way is opened
        select.select([udp], [], [], 1.0)
        udp.recv(65535)
        list(watcher.seen())
        for number in range(arguments.probes):
            size = FIRST_PROBE_BYTES + number * STEP_BYTES
            udp.send(head + datagram(size, number))
            if select.select([udp], [], [], 1.0)[0]:
                udp.recv(65535)
                sights[size].extend(watcher.seen())
            time.sleep(PROBE_PAUSE_S)
            list(watcher.seen())
        return {"client": udp.getsockname(), "socks": served, "sights": sights}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["echo", "load", "probe"])
    parser.add_argument("host", nargs="?", default="127.0.0.1")
    parser.add_argument("--ports", type=int, default=1)
    parser.add_argument("--socks", type=int)
    parser.add_argument("--echo", type=_address, action="append", default=[])
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--probes", type=int, default=200)
    arguments = parser.parse_args()
    print(json.dumps({"done": {"echo": echo, "load": load, "probe": probe}[arguments.role](arguments)}), flush=True)
    sys.stdin.read()
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
