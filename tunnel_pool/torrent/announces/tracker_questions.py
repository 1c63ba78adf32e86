"""Says what UDP and HTTP trackers are asked in the place of what libtorrent asks: where torrents are found. Pure.

An announce names the port by which the exit of its circuit is found. Where the tracker was told another place before,
`stopped` takes that back first: by the same port, peer id and exit. What a torrent says at its end goes there, too.
"""

from collections.abc import Callable
from typing import NamedTuple

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.socks5.address import AddressType, decode_address
from tunnel_pool.torrent.announces import http_trackers, tracker_answers, udp_trackers
from tunnel_pool.torrent.announces.outside import Address
from tunnel_pool.torrent.announces.pace import Event, Pace
from tunnel_pool.torrent.announces.questions import Question, question_of
from tunnel_pool.torrent.announces.tellings import Found, Telling, Tellings, Where
from tunnel_pool.torrent.announces.udp_trackers import Connections, Datagram
from tunnel_pool.torrent.anonymous_torrents import TrackerPlace

MAX_LAST, MAX_OUT = 1024, 4096


class Sent(NamedTuple):
    """Says what is sent to a UDP tracker, and over which circuit."""

    circuit_id: int
    datagram: Datagram


class UdpTurn(NamedTuple):
    """Says over which circuit the answer to a question comes, and what is sent in its place; or what the answer is."""

    circuit_id: int
    sent: list[Sent]
    answer: Datagram | None


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
        self._pace = Pace[Datagram](where, tellings)
        self._out = Newest[bytes, tuple[bytes, TrackerPlace]](MAX_OUT)  # announces, by their transactions

    def ask(self, circuit_id: int, question: Datagram, now_s: float, *, may_connect: bool) -> UdpTurn:
        """Return what becomes of a question.

        Without `may_connect`, nothing is sent yet to a tracker that is to be asked for a connection id.
        """
        if question_of(question.payload) is Question.ANNOUNCE:
            question, answer = self._judged(question, now_s)
            if answer is not None:
                return UdpTurn(circuit_id, [], answer)
            if udp_trackers.event_of(question.payload) is Event.STOPPED:
                circuit_id, question = self._stopped(circuit_id, question)
        asked = self.connections.ask(circuit_id, question, may_connect=may_connect)
        return UdpTurn(circuit_id, self.told(circuit_id, asked) if asked is not None else [], None)

    def _judged(self, question: Datagram, now_s: float) -> tuple[Datagram, Datagram | None]:
        """Return an announce with the event that it tells of, and the answer to one that the tracker does not get."""
        destination, announce = question
        key = udp_trackers.infohash_of(announce), _place(destination)
        event = self._pace.event(*key, udp_trackers.event_of(announce))
        transaction = udp_trackers.transaction_of(announce)
        answer = None
        if event is Event.STOPPED and self._pace.is_lost(*key):
            nobody = udp_trackers.answer_again(udp_trackers.NOBODY, transaction, udp_trackers.LEAST_S)
            answer = Datagram(destination, nobody)
        elif event is Event.NONE and (paced := self._pace.answer(*key, now_s)) is not None:
            origin, payload = paced.answer
            answer = Datagram(origin, udp_trackers.answer_again(payload, transaction, paced.until_s - now_s))
        return Datagram(destination, udp_trackers.with_event(announce, event)), answer

    def answered(self, answer: Datagram, now_s: float) -> None:
        """Note what a tracker may have answered to an announce."""
        payload = answer.payload
        is_answer = payload.startswith(udp_trackers.ANNOUNCED) and len(payload) >= len(udp_trackers.NOBODY)
        if is_answer and (key := self._out.pop(udp_trackers.transaction_of_answer(payload), None)) is not None:
            self._pace.answered(*key, now_s + udp_trackers.LEAST_S, answer)

    def told(self, circuit_id: int, question: Datagram) -> list[Sent]:
        """Return what is sent in the place of a question; what takes back what the tracker was told before is first."""
        destination, payload = question
        if question_of(payload) is not Question.ANNOUNCE:
            return [Sent(circuit_id, question)]
        if (transaction := udp_trackers.transaction_of(payload)) in self._last:
            after, self._last[transaction] = self._last[transaction], None
            return [Sent(circuit_id, question), *([after] if after is not None else [])]
        infohash = udp_trackers.infohash_of(payload)
        self._out[transaction] = infohash, _place(destination)
        # An exit's IPv6 socket has another port, which nobody has told us.
        is_here = circuit_id == self._where.circuit_id and destination[0] != AddressType.IPV6
        port = self._where.port if is_here else None
        told = udp_trackers.rewritten(payload, port, self._where.account_of(infohash))
        before = self._tellings.told(infohash, _place(destination), Telling(Found(circuit_id, port), told))
        if before is None or not self._where.is_ready(before.found.circuit_id):
            return [Sent(circuit_id, Datagram(destination, told))]
        if udp_trackers.event_of(told) is Event.NONE:
            told = udp_trackers.with_event(told, Event.STARTED)
        return self._taken_back(before, destination, Sent(circuit_id, Datagram(destination, told)))

    def _taken_back(self, before: Telling, destination: bytes, after: Sent) -> list[Sent]:
        """Return how a tracker hears that nobody is where it was told; what comes after waits for its connection id."""
        transaction = self._random_bytes(udp_trackers.TRANSACTION_BYTES)
        last = udp_trackers.with_event(before.announce, Event.STOPPED, transaction)
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
        self._pace = Pace[bytes](where, tellings)

    def at_once(self, tracker: Address, announce: bytes, now_s: float) -> HttpTurn | bytes | None:
        """Return how a tracker is told that a torrent has stopped, where it was told of it; or the answer to what it
        does not get. None: the announce is `told`, where torrents are found.
        """
        infohash, place = http_trackers.infohash_of(announce), _http_place(tracker)
        assert infohash is not None
        event = self._pace.event(infohash, place, http_trackers.event_of(announce))
        if event is Event.NONE and (paced := self._pace.answer(infohash, place, now_s)) is not None:
            return tracker_answers.again(paced.answer, paced.until_s - now_s)
        if event is not Event.STOPPED:
            return None
        if self._pace.is_lost(infohash, place):
            return tracker_answers.nobody()
        found = self._tellings.stopped(infohash, place)
        if found is None or not self._where.is_ready(found.circuit_id):
            return None
        told = http_trackers.rewritten(announce, found.port, self._where.account_of(infohash))
        return HttpTurn(None, HttpQuestion(told, found.circuit_id))

    def answered(self, tracker: Address, announce: bytes, response: bytes, now_s: float) -> None:
        """Note what a tracker answered to an announce, as libtorrent gets it."""
        infohash, least_s = http_trackers.infohash_of(announce), tracker_answers.least_s(response)
        if infohash is not None and least_s is not None:
            self._pace.answered(infohash, _http_place(tracker), now_s + least_s, response)

    def told(self, tracker: Address, request: bytes, circuit_id: int | None) -> HttpTurn:
        """Return what is asked over the circuit that is found where the session is; None: over any."""
        infohash, place = http_trackers.infohash_of(request), _http_place(tracker)
        assert infohash is not None
        event = self._pace.event(infohash, place, http_trackers.event_of(request))
        port = self._where.port if circuit_id is not None else None
        told = http_trackers.rewritten(request, port, self._where.account_of(infohash))
        asked = HttpQuestion(http_trackers.with_event(told, event), circuit_id)
        if circuit_id is None or event is Event.STOPPED:
            return HttpTurn(None, asked)
        before = self._tellings.told(infohash, place, Telling(Found(circuit_id, port), told))
        if before is None or not self._where.is_ready(before.found.circuit_id):
            return HttpTurn(None, asked)
        if event is Event.NONE:
            asked = HttpQuestion(http_trackers.with_event(told, Event.STARTED), circuit_id)
        last = http_trackers.with_event(before.announce, Event.STOPPED)
        return HttpTurn(HttpQuestion(last, before.found.circuit_id), asked)


def _http_place(tracker: Address) -> TrackerPlace:
    return "http", tracker[0].lower(), tracker[1]


def _place(destination: bytes) -> TrackerPlace:
    _, host, port = decode_address(destination)
    return "udp", host.lower(), port
