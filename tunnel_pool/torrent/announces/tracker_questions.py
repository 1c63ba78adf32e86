"""Says what UDP and HTTP trackers are asked in the place of what libtorrent asks: where torrents are found. Pure.

An announce names the port by which the exit of its circuit is found. Where the tracker was told another place before,
`stopped` takes that back first: by the same port, peer id and exit. What a torrent says at its end goes there, too.
"""

from collections.abc import Callable
from typing import NamedTuple

from tunnel_pool.contract import Address
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.socks5.address import AddressType, decode_address
from tunnel_pool.torrent.announces import http_trackers, udp_trackers
from tunnel_pool.torrent.announces.questions import Question, question_of
from tunnel_pool.torrent.announces.tellings import Found, Telling, Tellings, Where
from tunnel_pool.torrent.announces.udp_trackers import Connections, Datagram
from tunnel_pool.torrent.anonymous_torrents import TrackerPlace

MAX_LAST = 1024


class Sent(NamedTuple):
    """Says what is sent to a UDP tracker, and over which circuit."""

    circuit_id: int
    datagram: Datagram


class HttpQuestion(NamedTuple):
    """Says what an HTTP tracker is asked, and over which circuit; None: over any."""

    request: bytes
    circuit_id: int | None


class HttpTurn(NamedTuple):
    """Says what an HTTP tracker is asked: what takes back what it was told before, and what libtorrent waits for."""

    taken_back: HttpQuestion | None
    asked: HttpQuestion


class UdpQuestions:
    """Holds what UDP trackers were asked."""

    def __init__(self, where: Where, tellings: Tellings, random_bytes: Callable[[int], bytes]) -> None:
        self._where, self._tellings, self._random_bytes = where, tellings, random_bytes
        self.connections = Connections(random_bytes)
        # Transactions of announces that take others back, or are a torrent's last; and what is sent after each.
        self._last = Newest[bytes, Sent | None](MAX_LAST)

    def ask(self, circuit_id: int, question: Datagram, *, may_connect: bool) -> tuple[int, list[Sent]]:
        """Return over which circuit the answer comes, and what is sent now in the place of a question.

        Without `may_connect`, nothing is sent yet to a tracker that is to be asked for a connection id.
        """
        is_announce = question_of(question.payload) is Question.ANNOUNCE
        if is_announce and udp_trackers.event_of(question.payload) == udp_trackers.STOPPED:
            circuit_id, question = self._stopped(circuit_id, question)
        asked = self.connections.ask(circuit_id, question, may_connect=may_connect)
        return circuit_id, self.told(circuit_id, asked) if asked is not None else []

    def told(self, circuit_id: int, question: Datagram) -> list[Sent]:
        """Return what is sent in the place of a question; what takes back what the tracker was told before is first."""
        destination, payload = question
        if question_of(payload) is not Question.ANNOUNCE:
            return [Sent(circuit_id, question)]
        if (transaction := udp_trackers.transaction_of(payload)) in self._last:
            after, self._last[transaction] = self._last[transaction], None
            return [Sent(circuit_id, question), *([after] if after is not None else [])]
        infohash = udp_trackers.infohash_of(payload)
        # An exit's IPv6 socket has another port, which nobody has told us.
        is_here = circuit_id == self._where.circuit_id and destination[0] != AddressType.IPV6
        port = self._where.port if is_here else None
        told = udp_trackers.rewritten(payload, port, self._where.account_of(infohash))
        before = self._tellings.told(infohash, _place(destination), Telling(Found(circuit_id, port), told))
        if before is None or not self._where.is_ready(before.found.circuit_id):
            return [Sent(circuit_id, Datagram(destination, told))]
        if udp_trackers.event_of(told) == udp_trackers.NO_EVENT:
            told = udp_trackers.with_event(told, udp_trackers.STARTED)
        return self._taken_back(before, destination, Sent(circuit_id, Datagram(destination, told)))

    def _taken_back(self, before: Telling, destination: bytes, after: Sent) -> list[Sent]:
        """Return how a tracker hears that nobody is where it was told; what comes after waits for its connection id."""
        transaction = self._random_bytes(udp_trackers.TRANSACTION_BYTES)
        last = udp_trackers.with_event(before.announce, udp_trackers.STOPPED, transaction)
        self._last[transaction] = after
        asked = self.connections.ask(before.found.circuit_id, Datagram(destination, last))
        return self.told(before.found.circuit_id, asked) if asked is not None else []

    def _stopped(self, circuit_id: int, question: Datagram) -> tuple[int, Datagram]:
        """Return how a tracker is told that a torrent has stopped, and over which circuit."""
        destination, payload = question
        infohash = udp_trackers.infohash_of(payload)
        found = self._tellings.stopped(infohash, _place(destination))
        port = None
        if found is not None and self._where.is_ready(found.circuit_id):
            circuit_id, port = found
        self._last[udp_trackers.transaction_of(payload)] = None
        return circuit_id, Datagram(
            destination, udp_trackers.rewritten(payload, port, self._where.account_of(infohash))
        )


class HttpQuestions:
    """Holds what HTTP trackers were asked."""

    def __init__(self, where: Where, tellings: Tellings) -> None:
        self._where, self._tellings = where, tellings

    def last(self, tracker: Address, request: bytes) -> HttpQuestion | None:
        """Return how a tracker is told that a torrent has stopped, where it was told of it; None for all else."""
        infohash = http_trackers.infohash_of(request)
        if infohash is None or http_trackers.event_of(request) != http_trackers.STOPPED:
            return None
        found = self._tellings.stopped(infohash, _http_place(tracker))
        if found is None or not self._where.is_ready(found.circuit_id):
            return None
        told = http_trackers.rewritten(request, found.port, self._where.account_of(infohash))
        return HttpQuestion(told, found.circuit_id)

    def told(self, tracker: Address, request: bytes, circuit_id: int | None) -> HttpTurn:
        """Return what is asked over the circuit that is found where the session is; None: over any."""
        infohash = http_trackers.infohash_of(request)
        account = self._where.account_of(infohash) if infohash is not None else None
        port = self._where.port if circuit_id is not None else None
        told = http_trackers.rewritten(request, port, account)
        asked = HttpQuestion(told, circuit_id)
        if infohash is None or circuit_id is None or http_trackers.event_of(request) == http_trackers.STOPPED:
            return HttpTurn(None, asked)
        before = self._tellings.told(infohash, _http_place(tracker), Telling(Found(circuit_id, port), told))
        if before is None or not self._where.is_ready(before.found.circuit_id):
            return HttpTurn(None, asked)
        if not http_trackers.event_of(told):
            asked = HttpQuestion(http_trackers.with_event(told, http_trackers.STARTED), circuit_id)
        last = http_trackers.with_event(before.announce, http_trackers.STOPPED)
        return HttpTurn(HttpQuestion(last, before.found.circuit_id), asked)


def _http_place(tracker: Address) -> TrackerPlace:
    return "http", tracker[0].lower(), tracker[1]


def _place(destination: bytes) -> TrackerPlace:
    _, host, port = decode_address(destination)
    return "udp", host.lower(), port
