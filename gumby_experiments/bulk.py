"""TCP connections that carry as much as they can, straight or through a SOCKS5 server.

python -m tunnel_pool.gumby_experiments.bulk serve HOST --ports N
python -m tunnel_pool.gumby_experiments.bulk fetch --socks PORT --server HOST:PORT ... --seconds S [--users N]

Both ends begin with BitTorrent's handshake (BEP 3), as an exit expects, then the server sends and the client reads.
`serve` says {"ports"}. `fetch` connects to every server, begins when all of them have answered, and says {"done"}:
`mb_per_s` in all, `streams_mb_per_s` of each.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence

import socks  # type: ignore[import-untyped]

from tunnel_pool.cli.arguments.options import host_port
from tunnel_pool.overlay.config import HostPort

HANDSHAKE = b"\x13BitTorrent protocol" + bytes(8) + b"bulk" * 10
BLOCK_BYTES = 1 << 18
CONNECT_S = 60.0
RETRY_S = 0.5
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
    print(json.dumps({"ports": [listener.getsockname()[1] for listener in listeners]}), flush=True)
    sys.stdin.read()


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

    def __init__(self, servers: Sequence[HostPort], proxy_port: int, seconds: float, users: int) -> None:
        """So many `users` of the proxy connect in turn, and Tor gives each its own circuits; 0: without a name."""
        self._proxy_port = proxy_port
        self._seconds = seconds
        self._users = [f"user{number % users}" if users else None for number in range(len(servers))]
        self._servers = servers
        self._all_there = threading.Barrier(len(servers))
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
        until_s = time.monotonic() + self._seconds
        while (left_s := until_s - time.monotonic()) > 0:
            sock.settimeout(left_s)
            try:
                count = sock.recv_into(buffer)
            except TimeoutError:
                return
            if not count:
                raise ConnectionError("a server, or the way there, has closed the connection")
            self._bytes[number] += count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve")
    serving.add_argument("host")
    serving.add_argument("--ports", type=int, required=True)
    fetching = commands.add_parser("fetch")
    fetching.add_argument("--socks", type=int, required=True)
    fetching.add_argument("--server", type=host_port, action="append", required=True)
    fetching.add_argument("--seconds", type=float, required=True)
    fetching.add_argument("--users", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "serve":
        serve(arguments.host, arguments.ports)
        return 0
    try:
        speeds = Fetch(arguments.server, arguments.socks, arguments.seconds, arguments.users).run()
    except OSError as error:
        print(f"a connection failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"done": {"mb_per_s": sum(speeds), "streams_mb_per_s": speeds}}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
