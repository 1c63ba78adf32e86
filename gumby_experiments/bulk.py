"""TCP connections that carry as much as they can through a SOCKS5 server.

python -m tunnel_pool.gumby_experiments.bulk serve HOST --ports N
python -m tunnel_pool.gumby_experiments.bulk fetch --socks PORT --server HOST:PORT ... --seconds S [--after S]
    [--users N]
python -m tunnel_pool.gumby_experiments.bulk flood --socks PORT --server HOST:PORT ... --seconds S

Both ends begin with BitTorrent's handshake (BEP 3), as an exit expects, then the server sends and the client reads.
`serve` says {"ports"}, and sends datagrams to the first of these back. `fetch` connects to every server, counts from
`--after` seconds after all of them have answered, and says {"done"}: `mb_per_s` in all, `streams_mb_per_s` of each,
and `empty_ms` and `loaded_ms`, the median round trip of small datagrams past the tunnels before and meanwhile. `flood`
opens connections as fast as it can and never reads, and says {"done"}: how many were `asked` and `opened`.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import socks  # type: ignore[import-untyped]

from tunnel_pool.cli.arguments.values import host_port
from tunnel_pool.overlay.ground.config import HostPort

HANDSHAKE = b"\x13BitTorrent protocol" + bytes(8) + b"bulk" * 10
BLOCK_BYTES = 1 << 18
CONNECT_S = 60.0
RETRY_S = 0.5
MAX_DATAGRAM_BYTES = 1500
ECHO_EVERY_S, ECHO_TIMEOUT_S, ECHO_EMPTY_S = 0.02, 1.0, 1.0
FLOODERS = 16  # threads that open connections
KEPT = 64  # connections that each of them keeps
MB = 1_000_000


def _exactly(sock: socket.socket, count: int) -> bytes:
    """Return so many bytes. Raises OSError when the connection ends before."""
    read = b""
    while len(read) < count:
        if not (more := sock.recv(count - len(read))):
            raise ConnectionError("the other end has closed the connection")
        read += more
    return read


def _send(sock: socket.socket) -> None:
    block = os.urandom(BLOCK_BYTES)
    try:
        with sock:
            _exactly(sock, len(HANDSHAKE))
            sock.sendall(HANDSHAKE)
            while True:
                sock.sendall(block)
    except OSError:
        return


def _accept(listener: socket.socket) -> None:
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_send, args=(sock,), daemon=True).start()


def serve(host: str, ports: int) -> None:
    """Listen until stdin ends."""
    listeners = [socket.create_server((host, 0)) for _ in range(ports)]
    for listener in listeners:
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind(listeners[0].getsockname())
    threading.Thread(target=_echo, args=(echo,), daemon=True).start()
    print(json.dumps({"ports": [listener.getsockname()[1] for listener in listeners]}), flush=True)
    sys.stdin.read()


def _echo(sock: socket.socket) -> None:
    while True:
        sock.sendto(*sock.recvfrom(MAX_DATAGRAM_BYTES))


def round_trips(server: HostPort, seconds: float) -> list[float]:
    """Return the milliseconds that each of so many seconds' datagrams took there and back: of one at least.

    Raises OSError when none comes back.
    """
    until_s = time.monotonic() + seconds
    took_ms: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(server)
        sock.settimeout(ECHO_TIMEOUT_S)
        while time.monotonic() < until_s or not took_ms:
            if time.monotonic() > until_s + CONNECT_S:
                raise ConnectionError("the server sends no datagram back")
            sent = str(time.monotonic_ns()).encode()
            sock.send(sent)
            try:
                while sock.recv(MAX_DATAGRAM_BYTES) != sent:
                    pass
            except TimeoutError:
                continue
            took_ms.append((time.monotonic_ns() - int(sent)) / 1e6)
            time.sleep(ECHO_EVERY_S)
    return took_ms


def _connected(server: HostPort, proxy_port: int, user: str | None) -> socket.socket:
    """Return a connection whose server has answered; what refuses is asked again. Raises OSError after CONNECT_S."""
    until_s = time.monotonic() + CONNECT_S
    while True:
        sock = socks.socksocket()
        sock.set_proxy(socks.SOCKS5, "127.0.0.1", proxy_port, username=user, password=user)
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(server)
            sock.sendall(HANDSHAKE)
            _exactly(sock, len(HANDSHAKE))
        except OSError:
            sock.close()
            if time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)
            continue
        return sock  # type: ignore[no-any-return]


class Fetch:
    """Reads from all servers at once, each in a thread."""

    def __init__(
        self,
        servers: Sequence[HostPort],
        proxy_port: int,
        seconds: float,
        *,
        after_s: float,
        users: int,
        on_begun: Callable[[], None],
    ) -> None:
        """Prepare to fetch as so many `users` of the proxy in turn: Tor gives each circuits of his own; 0: none.

        What comes within `after_s` of the begin is read and not counted.
        """
        self._proxy_port = proxy_port
        self._seconds = seconds
        self._after_s = after_s
        self._users = [f"user{number % users}" if users else None for number in range(len(servers))]
        self._servers = servers
        self._all_there = threading.Barrier(len(servers), on_begun)
        self._bytes = [0] * len(servers)
        self._errors: list[OSError] = []

    def run(self) -> list[float]:
        """Return MB/s of each connection. Raises OSError."""
        threads = [threading.Thread(target=self._fetch, args=(number,)) for number in range(len(self._servers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return [count / MB / self._seconds for count in self._bytes]

    def _fetch(self, number: int) -> None:
        try:
            with _connected(self._servers[number], self._proxy_port, self._users[number]) as sock:
                self._all_there.wait()
                self._read(sock, number)
        except OSError as error:
            self._errors.append(error)
            self._all_there.abort()
        except threading.BrokenBarrierError:
            return

    def _read(self, sock: socket.socket, number: int) -> None:
        buffer = bytearray(BLOCK_BYTES)
        counted_from_s = time.monotonic() + self._after_s
        until_s = counted_from_s + self._seconds
        while (left_s := until_s - time.monotonic()) > 0:
            sock.settimeout(left_s)
            try:
                count = sock.recv_into(buffer)
            except TimeoutError:
                return
            if not count:
                raise ConnectionError("a server, or the way there, has closed the connection")
            if time.monotonic() > counted_from_s:
                self._bytes[number] += count


def flood(servers: Sequence[HostPort], proxy_port: int, seconds: float) -> dict[str, int]:
    """Open connections and never read; the oldest make room. Return how many were asked for, and how many opened."""
    until_s = time.monotonic() + seconds
    counts = {"asked": 0, "opened": 0}
    lock = threading.Lock()

    def work() -> None:
        kept: list[socket.socket] = []
        while time.monotonic() < until_s:
            sock = socks.socksocket()
            sock.set_proxy(socks.SOCKS5, "127.0.0.1", proxy_port)
            sock.settimeout(RETRY_S)
            opened = False
            try:
                sock.connect(servers[counts["asked"] % len(servers)])
                sock.sendall(HANDSHAKE)
                opened = True
            except OSError:
                sock.close()
            with lock:
                counts["asked"] += 1
                counts["opened"] += opened
            if opened:
                kept.append(sock)
            if len(kept) > KEPT:
                kept.pop(0).close()

    threads = [threading.Thread(target=work) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve")
    serving.add_argument("host")
    serving.add_argument("--ports", type=int, required=True)
    fetching, flooding = commands.add_parser("fetch"), commands.add_parser("flood")
    for each in (fetching, flooding):
        each.add_argument("--socks", type=int, required=True)
        each.add_argument("--server", type=host_port, action="append", required=True)
        each.add_argument("--seconds", type=float, required=True)
    fetching.add_argument("--after", type=float, default=0.0)
    fetching.add_argument("--users", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "serve":
        serve(arguments.host, arguments.ports)
        return 0
    if arguments.command == "flood":
        print(json.dumps({"done": flood(arguments.server, arguments.socks, arguments.seconds)}), flush=True)
        return 0
    try:
        print(json.dumps({"done": _fetched(arguments)}), flush=True)
    except OSError as error:
        print(f"a connection failed: {error}", file=sys.stderr)
        return 1
    return 0


def _fetched(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises OSError."""
    empty_ms = statistics.median(round_trips(arguments.server[0], ECHO_EMPTY_S))
    loaded_ms: list[float] = []
    whole_s = arguments.after + arguments.seconds
    pinging = threading.Thread(target=lambda: loaded_ms.extend(round_trips(arguments.server[0], whole_s)))
    speeds = Fetch(
        arguments.server,
        arguments.socks,
        arguments.seconds,
        after_s=arguments.after,
        users=arguments.users,
        on_begun=pinging.start,
    ).run()
    pinging.join()
    return {
        "mb_per_s": sum(speeds),
        "streams_mb_per_s": speeds,
        "empty_ms": empty_ms,
        "loaded_ms": statistics.median(loaded_ms),
    }


if __name__ == "__main__":
    sys.exit(main())
