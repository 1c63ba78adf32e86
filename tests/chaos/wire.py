"""Listens on loopback for packets that reach a seeder of anonymous torrents and don't come from an exit."""

import asyncio
import contextlib
import ctypes
import socket
import struct
import threading
from collections import Counter

ETH_P_IP = 0x0800
SO_ATTACH_FILTER = 26  # asm-generic/socket.h
KEPT_BYTES = 64
PROTOCOL_AT, SOURCE_AT, DESTINATION_AT = 9, 12, 16  # in an IPv4 header
OUTGOING = 4  # PACKET_OUTGOING, linux/if_packet.h: on loopback each packet is seen twice


def net_of(prefix):
    """Return the 16 or 24 bits of a network that `prefix` names, as a number, and how many bits are left."""
    numbers = list(map(int, prefix.split(".")))
    value = 0
    for number in numbers:
        value = value << 8 | number
    return value, 32 - 8 * len(numbers)


class PlainPackets:
    """Counts packets to one network that do not come from another, by where they came from."""

    def __init__(self, to, not_from):
        """Listen on loopback; `to` and `not_from` are the first numbers of IPv4 addresses, such as "127.78".

        Use it in a network namespace of its own alone.
        """
        self.seen = Counter()
        self._to = to
        (network, to_shift), (source, source_shift) = net_of(to), net_of(not_from)
        # linux/filter.h; the network header begins at offset 0, SKF_NET_OFF is not needed with SOCK_DGRAM.
        program = [
            (0x20, 0, 0, DESTINATION_AT),
            (0x74, 0, 0, to_shift),
            (0x15, 0, 4, network),
            (0x20, 0, 0, SOURCE_AT),
            (0x74, 0, 0, source_shift),
            (0x15, 1, 0, source),
            (0x06, 0, 0, KEPT_BYTES),
            (0x06, 0, 0, 0),
        ]
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
        filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
        self._socket.bind(("lo", 0))
        threading.Thread(target=self._listen, daemon=True).start()

    async def hears(self):
        """Send one packet past the tunnels, and return whether it was counted; if not, the capture does not work."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            plain.bind(("127.0.0.1", 0))
            plain.sendto(b"plain", (f"{self._to}.1.1", 9))
        for _ in range(100):
            if self.seen:
                return True
            await asyncio.sleep(0.05)
        return False

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                packet, (_, _, kind, *_) = self._socket.recvfrom(KEPT_BYTES)
                if kind != OUTGOING:
                    source, destination = packet[SOURCE_AT:DESTINATION_AT], packet[DESTINATION_AT : DESTINATION_AT + 4]
                    where = f"{socket.inet_ntoa(source)} -> {socket.inet_ntoa(destination)}"
                    self.seen[f"{packet[PROTOCOL_AT]} {where}"] += 1
