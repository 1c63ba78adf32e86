"""Says what UDP and HTTP trackers are asked in the place of what libtorrent asks: where torrents are found. Pure.

An announce names the port by which the exit of its circuit is found. Where the tracker was told another place before,
`stopped` takes that back first: by the same port, peer id and exit. What a torrent says at its end goes there, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.socks5.address import AddressType, decode_address
from tunnel_pool.torrent.announces import http_trackers, tracker_answers, udp_trackers
from tunnel_pool.torrent.announces.outside import Address
from tunnel_pool.torrent.announces.pace import Event, Pace
from tunnel_pool.torrent.announces.questions import Question, question_of
from tunnel_pool.torrent.announces.tellings import Found, Telling, Tellings, Tracker, Where
from tunnel_pool.torrent.announces.udp_trackers import Connections, Datagram
from tunnel_pool.torrent.anonymous_torrents import tracker_place

MAX_HELD, MAX_OUT = 1024, 4096
TAKEN_BACK_S = 5.0  # how long a tracker has to answer that another place is taken back


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


@dataclass(slots=True)
class _Held:
    """Holds an announce that waits for the answer to another over a circuit."""

    circuit_id: int
    after: Sent
    until_s: float | None = None  # None until the time is known


class UdpQuestions:
    """Holds what UDP trackers were asked."""

    def __init__(self, where: Where, tellings: Tellings, random_bytes: Callable[[int], bytes]) -> None:
        self._where, self._random_bytes = where, random_bytes
        self.connections = Connections(random_bytes)
        self._pace = Pace[Datagram](where, tellings)
        self._out = Newest[bytes, tuple[bytes, Tracker]](MAX_OUT)  # announces, by their transactions
        self._held = Newest[bytes, _Held](MAX_HELD)  # by the transactions of the announces that are to be heard first

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
        key = udp_trackers.infohash_of(announce), _udp_tracker(destination)
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

    def answered(self, answer: Datagram, now_s: float) -> list[Sent]:
        """Note what a tracker may have answered to an announce; return what has waited for that."""
        payload = answer.payload
        if not payload.startswith(udp_trackers.ANNOUNCED) or len(payload) < len(udp_trackers.NOBODY):
            return []
        transaction = udp_trackers.transaction_of_answer(payload)
        if (key := self._out.pop(transaction, None)) is not None:
            self._pace.answered(*key, now_s + udp_trackers.LEAST_S, answer)
        held = self._held.pop(transaction, None)
        return [held.after] if held is not None else []

    def overdue(self, now_s: float) -> list[Sent]:
        """Return what has waited for long enough for an answer that did not come."""
        for held in self._held.values():
            held.until_s = held.until_s or now_s + TAKEN_BACK_S
        return self._released(lambda held: now_s >= (held.until_s or now_s))

    def forget_circuit(self, circuit_id: int) -> list[Sent]:
        """Return what has waited for an answer over a circuit that is gone."""
        self.connections.forget_circuit(circuit_id)
        return self._released(lambda held: held.circuit_id == circuit_id)

    def _released(self, is_due: Callable[[_Held], bool]) -> list[Sent]:
        due = [transaction for transaction, held in self._held.items() if is_due(held)]
        return [self._held.pop(transaction).after for transaction in due]

    def told(self, circuit_id: int, question: Datagram) -> list[Sent]:
        """Return what is sent in the place of a question.

        Where that takes back what the tracker was told before, the question is sent once the tracker has answered.
        """
        destination, payload = question
        is_announce = question_of(payload) is Question.ANNOUNCE
        if not is_announce or udp_trackers.event_of(payload) is Event.STOPPED:
            return [Sent(circuit_id, question)]
        infohash, tracker = udp_trackers.infohash_of(payload), _udp_tracker(destination)
        self._out[udp_trackers.transaction_of(payload)] = infohash, tracker
        # An exit's IPv6 socket has another port, which nobody has told us.
        is_here = circuit_id == self._where.circuit_id and destination[0] != AddressType.IPV6
        port = self._where.port if is_here else None
        told = udp_trackers.rewritten(payload, port, self._where.account_of(infohash))
        before = self._pace.told(infohash, tracker, Telling(Found(circuit_id, port), told))
        if before is None:
            return [Sent(circuit_id, Datagram(destination, told))]
        if udp_trackers.event_of(told) is Event.NONE:
            told = udp_trackers.with_event(told, Event.STARTED)
        return self._taken_back(before, destination, Sent(circuit_id, Datagram(destination, told)))

    def _taken_back(self, before: Telling, destination: bytes, after: Sent) -> list[Sent]:
        """Return how a tracker hears that nobody is where it was told."""
        transaction, circuit_id = self._random_bytes(udp_trackers.TRANSACTION_BYTES), before.found.circuit_id
        self._held[transaction] = _Held(circuit_id, after)
        last = Datagram(destination, udp_trackers.with_event(before.announce, Event.STOPPED, transaction))
        asked = self.connections.ask(circuit_id, last)
        return [Sent(circuit_id, asked)] if asked is not None else []

    def _stopped(self, circuit_id: int, question: Datagram) -> tuple[int, Datagram]:
        """Return how a tracker is told that a torrent has stopped, and over which circuit."""
        destination, payload = question
        infohash, tracker = udp_trackers.infohash_of(payload), _udp_tracker(destination)
        found = self._pace.stopped(infohash, tracker)
        circuit_id, port = found if found is not None else (circuit_id, None)
        told = udp_trackers.rewritten(payload, port, self._where.account_of(infohash))
        return circuit_id, Datagram(destination, told)


class HttpQuestions:
    """Holds what HTTP trackers were asked."""

    def __init__(self, where: Where, tellings: Tellings) -> None:
        self._where = where
        self._pace = Pace[bytes](where, tellings)

    def at_once(self, tracker: Address, announce: bytes, now_s: float) -> HttpTurn | bytes | None:
        """Return how a tracker is told that a torrent has stopped, where it was told of it; or the answer to what it
        does not get. None: the announce is `told`, where torrents are found.
        """
        infohash, place = http_trackers.infohash_of(announce), _http_tracker(tracker, announce)
        assert infohash is not None
        event = self._pace.event(infohash, place, http_trackers.event_of(announce))
        if event is Event.NONE and (paced := self._pace.answer(infohash, place, now_s)) is not None:
            return tracker_answers.again(paced.answer, paced.until_s - now_s)
        if event is not Event.STOPPED:
            return None
        if self._pace.is_lost(infohash, place):
            return tracker_answers.nobody()
        if (found := self._pace.stopped(infohash, place)) is None:
            return None
        told = http_trackers.rewritten(announce, found.port, self._where.account_of(infohash))
        return HttpTurn(None, HttpQuestion(told, found.circuit_id))

    def answered(self, tracker: Address, announce: bytes, response: bytes, now_s: float) -> None:
        """Note what a tracker answered to an announce, as libtorrent gets it."""
        infohash, least_s = http_trackers.infohash_of(announce), tracker_answers.least_s(response)
        if infohash is not None and least_s is not None:
            kept = tracker_answers.remembered(response)
            self._pace.answered(infohash, _http_tracker(tracker, announce), now_s + least_s, kept)

    def told(self, tracker: Address, request: bytes, circuit_id: int | None) -> HttpTurn:
        """Return what is asked over the circuit that is found where the session is; None: over any."""
        infohash, place = http_trackers.infohash_of(request), _http_tracker(tracker, request)
        assert infohash is not None
        event = self._pace.event(infohash, place, http_trackers.event_of(request))
        port = self._where.port if circuit_id is not None else None
        told = http_trackers.rewritten(request, port, self._where.account_of(infohash))
        asked = HttpQuestion(http_trackers.with_event(told, event), circuit_id)
        if circuit_id is None or event is Event.STOPPED:
            return HttpTurn(None, asked)
        before = self._pace.told(infohash, place, Telling(Found(circuit_id, port), told))
        if before is None:
            return HttpTurn(None, asked)
        if event is Event.NONE:
            asked = HttpQuestion(http_trackers.with_event(told, Event.STARTED), circuit_id)
        last = http_trackers.with_event(before.announce, Event.STOPPED)
        return HttpTurn(HttpQuestion(last, before.found.circuit_id), asked)


def tracker_of(url: str) -> Tracker | None:
    """Return which tracker this is, as announces to it are known by; None for one that is asked otherwise."""
    if (place := tracker_place(url)) is None:
        return None
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}".rstrip("?&") if parts.scheme == "http" else ""
    return place[0], place[1].lower(), place[2], path


def _http_tracker(tracker: Address, announce: bytes) -> Tracker:
    return "http", tracker[0].lower(), tracker[1], http_trackers.own_path_of(announce)


def _udp_tracker(destination: bytes) -> Tracker:
    _, host, port = decode_address(destination)
    return "udp", host.lower(), port, ""
