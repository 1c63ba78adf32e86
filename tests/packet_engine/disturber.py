"""A network between a client and a node that loses, repeats and reorders cells."""

import asyncio
import random
import socket
from collections import Counter

from tests.worlds.network import unused_host
from tunnel_pool.overlay.ground.config import HostPort

CELL_AT = 22
HOLD_S = 0.003


class Disturber:
    """A UDP proxy at `address`, between a client and a node, that disturbs data cells and passes all else untouched."""

    def __init__(self, node, seed, loss=0.0, repeats=0.0, held=0.0):
        self._random = random.Random(seed)
        self._rates = (loss, repeats, held)
        self._loop = asyncio.get_running_loop()
        self._node = node
        self._client = None
        self._front, self._back = (self._bound() for _ in range(2))
        self.address = HostPort(*self._front.getsockname())
        self.cells = Counter()
        self.forwarded = []  # cells towards the node, each once, in the order of its first arrival

    @staticmethod
    def _bound():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        sock.bind((unused_host(), 0))
        sock.setblocking(False)
        return sock

    def __enter__(self):
        self._loop.add_reader(self._front, self._from_client)
        self._loop.add_reader(self._back, self._from_node)
        return self

    def __exit__(self, *exc):
        for sock in (self._front, self._back):
            self._loop.remove_reader(sock)
            sock.close()

    def inject(self, cell):
        """Send the node a cell once more."""
        self._back.sendto(cell, self._node)

    def _from_client(self):
        data, self._client = self._front.recvfrom(65535)
        self._pass(data, self._back, self._node, self.forwarded)

    def _from_node(self):
        data, _ = self._back.recvfrom(65535)
        self._pass(data, self._front, self._client, None)

    def _pass(self, data, sock, to, record):
        is_data_cell = data[CELL_AT] == 0 and data[27] == 0 and len(data) > 90
        loss, repeats, held = self._rates if is_data_cell else (0, 0, 0)
        if self._random.random() < loss:
            self.cells["lost"] += 1
            return
        if is_data_cell and record is not None:
            record.append(data)
        copies = 2 if self._random.random() < repeats else 1
        for _ in range(copies):
            if self._random.random() < held:
                self.cells["held"] += 1
                self._loop.call_later(HOLD_S, self._send, sock, data, to)
            else:
                self._send(sock, data, to)
        self.cells["repeated"] += copies - 1

    @staticmethod
    def _send(sock, data, to):
        if sock.fileno() >= 0:
            sock.sendto(data, to)
