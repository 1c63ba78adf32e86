"""Knows which sources of packets are really there, and how much each may be sent. Pure: the time is an argument.

Anybody can send a packet in somebody else's name. Who answers a question of ours at an address hears what is
sent there; until then, nobody is sent more than came in its name.
"""

from typing import NamedTuple

from tunnel_pool.overlay.ground.pacing import TokenBucket

PROVEN_S = 600.0
MAX_PROVEN = 4096
HOST_KNOWN_S = 24 * 3600.0
MAX_HOSTS = 8192
MAX_HELD = 1024  # sources that are being asked
MAX_HELD_PACKETS = 4  # the most packets that are held for each source
QUESTIONS_PER_S, QUESTIONS_AT_ONCE = 100.0, 200.0
ANSWERS_PER_S, ANSWERS_AT_ONCE = 2.0, 10.0  # to a source; py-ipv8's DHT nodes have the like (dht/routing.py)


class Source(NamedTuple):
    """The sender of a packet: the address that it came from, and the public key that it names."""

    address: tuple[str, int]
    public_key: bytes


class ProvenSources:
    """Keeps sources that answered a question of ours in the last minutes, the oldest first."""

    def __init__(self) -> None:
        self._known: dict[Source, tuple[float, TokenBucket]] = {}
        self._hosts: dict[str, float] = {}

    def add(self, source: Source, now_s: float) -> None:
        _, answers = self._known.pop(source, (0.0, TokenBucket()))
        self._known[source] = now_s + PROVEN_S, answers
        while len(self._known) > MAX_PROVEN or next(iter(self._known.values()))[0] <= now_s:
            del self._known[next(iter(self._known))]
        host = source.address[0]
        self._hosts.pop(host, None)
        self._hosts[host] = now_s + HOST_KNOWN_S
        if len(self._hosts) > MAX_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    def has_host(self, host: str, now_s: float) -> bool:
        """Return whether some node answered from this address, whatever its port, within a day."""
        return self._hosts.get(host, 0.0) > now_s

    def has(self, source: Source, now_s: float) -> bool:
        return source in self._known and self._known[source][0] > now_s

    def take(self, source: Source, now_s: float) -> bool:
        """Return whether a proven source may be answered once more now."""
        return self._known[source][1].spend(ANSWERS_PER_S, ANSWERS_AT_ONCE, now_s)


class HeldPackets:
    """Keeps the packets of sources that are being asked whether they are there."""

    def __init__(self) -> None:
        self._held: dict[Source, list[bytes]] = {}
        self._questions = TokenBucket()

    def hold(self, source: Source, packet: bytes, now_s: float) -> bool | None:
        """Return True when the source is to be asked now, False when it was asked, None when the packet is dropped."""
        if (packets := self._held.get(source)) is not None:
            if len(packets) >= MAX_HELD_PACKETS:
                return None
            packets.append(packet)
            return False
        if len(self._held) >= MAX_HELD or not self._questions.spend(QUESTIONS_PER_S, QUESTIONS_AT_ONCE, now_s):
            return None
        self._held[source] = [packet]
        return True

    def release(self, source: Source) -> list[bytes]:
        """Return what was held, and hold it no longer."""
        return self._held.pop(source, [])
