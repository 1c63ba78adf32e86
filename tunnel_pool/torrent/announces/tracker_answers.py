"""Writes what an HTTP tracker answered anew for libtorrent (BEP 3, 7, 23 and 48). Pure.

libtorrent has a name among a tracker's peers looked up by the system's resolver, past the proxy. So it gets a
response that was made here: known keys alone, peers as addresses alone, in the compact form.
"""

import ipaddress
import math
from socket import inet_aton
from typing import Any
from urllib.parse import urljoin

import libtorrent as lt

from tunnel_pool.overlay.requests.bencode import is_bencoded
from tunnel_pool.overlay.requests.http_answers import REDIRECTIONS, read_whole
from tunnel_pool.torrent.announces.outside import Address
from tunnel_pool.torrent.anonymous_torrents import is_allowed_tracker

LEAST_S = 30  # where a tracker does not say how often it may be asked; libtorrent takes this
MOST_S = 3600  # it may wish for no longer: who forges one answer would have it asked never again
MAX_PEERS = 1000
MAX_REMEMBERED = 200  # of the peers in an answer
_HEAD_END = b"\r\n\r\n"
MAX_TEXT_BYTES = 500
MAX_SCRAPED = 100
_NUMBERS = (b"interval", b"min interval", b"complete", b"incomplete", b"downloaded")
_TEXTS = (b"failure reason", b"warning message", b"tracker id")
_SCRAPED = (b"complete", b"incomplete", b"downloaded")
_IPV4_PEER_BYTES, _IPV6_PEER_BYTES, _PORT_BYTES = 6, 18, 2
_INFOHASH_BYTES = 20


class AnswerRefusedError(ValueError):
    """Says what is wrong with a response that libtorrent does not get."""


def other_peers(peers: bytes, own: Address | None) -> bytes:
    """Return compact IPv4 peers without our own, which is where others find us: an exit's address.

    libtorrent would connect to itself over the tunnels, and count that connection among its peers until it fails.
    """
    if own is None or ":" in own[0]:
        return peers
    place = inet_aton(own[0]) + own[1].to_bytes(_PORT_BYTES, "big")
    if place not in peers:
        return peers
    each = (peers[at : at + _IPV4_PEER_BYTES] for at in range(0, len(peers), _IPV4_PEER_BYTES))
    return b"".join(peer for peer in each if peer != place)


def rewritten(response: bytes, url: str, own: Address | None = None) -> bytes:
    """Return the HTTP response that libtorrent gets in the place of a tracker's.

    `url` is what was asked for, from which a relative redirection goes on. `own` is where others find the torrent, by
    IPv4, which is left out of the peers. Raises AnswerRefusedError.
    """
    try:
        answer = read_whole(response).answer()
    except ValueError as error:
        raise AnswerRefusedError(str(error)) from None
    if answer.status in REDIRECTIONS:
        try:
            target = urljoin(url, answer.headers.get(b"location", b"").decode("latin-1"))
        except ValueError as error:
            raise AnswerRefusedError(f"a redirection to what is no URL: {error}") from None
        if not target.startswith("http:") or not is_allowed_tracker(target):
            raise AnswerRefusedError("a redirection to what can't be asked through the tunnels")
        return _response(b"302 Found", b"", f"Location: {target}\r\n".encode())
    if not is_bencoded(answer.body):
        raise AnswerRefusedError("not a tracker's answer")
    decoded: Any = lt.bdecode(answer.body)
    if not isinstance(decoded, dict):
        raise AnswerRefusedError("not a tracker's answer")
    known = _known(decoded)
    if b"peers" in known:
        known[b"peers"] = other_peers(known[b"peers"], own)
    return _response(b"200 OK", lt.bencode(known))


def least_s(response: bytes) -> float | None:
    """Return how long a tracker wants to be left alone, by what `rewritten` made of its answer.

    None where it refused, or named another place.
    """
    body = response.partition(_HEAD_END)[2]
    answer: Any = lt.bdecode(body) if body else None
    if not isinstance(answer, dict) or b"failure reason" in answer:
        return None
    return float(min(max(answer.get(b"min interval", LEAST_S), 0), MOST_S))


def remembered(response: bytes) -> bytes:
    """Return what is kept of an answer: some of its peers, and nothing of other torrents."""
    answer: Any = lt.bdecode(response.partition(_HEAD_END)[2])
    answer.pop(b"files", None)
    for key, size in ((b"peers", _IPV4_PEER_BYTES), (b"peers6", _IPV6_PEER_BYTES)):
        if key in answer:
            answer[key] = answer[key][: size * MAX_REMEMBERED]
    return _response(b"200 OK", lt.bencode(answer))


def again(response: bytes, left_s: float) -> bytes:
    """Return an answer as that to an announce which comes too soon."""
    answer: Any = lt.bdecode(response.partition(_HEAD_END)[2])
    left = {b"interval": math.ceil(left_s), b"min interval": math.ceil(left_s)}
    return _response(b"200 OK", lt.bencode({**answer, **left}))


def nobody() -> bytes:
    """Return an answer without peers."""
    answer: dict[bytes, Any] = {b"interval": 1800, b"peers": b""}
    return _response(b"200 OK", lt.bencode(answer))


def _response(status: bytes, body: bytes, header: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, header, len(body), body)


def _known(answer: dict[bytes, Any]) -> dict[bytes, Any]:
    kept: dict[bytes, Any] = {key: answer[key] for key in _NUMBERS if isinstance(answer.get(key), int)}
    for key in _TEXTS:
        if isinstance(answer.get(key), bytes):
            kept[key] = answer[key][:MAX_TEXT_BYTES]
    if b"peers" in answer or b"peers6" in answer:
        listed4, listed6 = _listed(answer.get(b"peers"))
        kept[b"peers"] = _compact(answer.get(b"peers"), _IPV4_PEER_BYTES) + listed4
        kept[b"peers6"] = _compact(answer.get(b"peers6"), _IPV6_PEER_BYTES) + listed6
    if isinstance(files := answer.get(b"files"), dict):
        kept[b"files"] = {
            infohash: {key: counts[key] for key in _SCRAPED if isinstance(counts.get(key), int)}
            for infohash, counts in list(files.items())[:MAX_SCRAPED]
            if len(infohash) == _INFOHASH_BYTES and isinstance(counts, dict)
        }
    return kept


def _compact(peers: Any, size: int) -> bytes:
    """Return up to MAX_PEERS compact peers, without a truncated one at the end; none if `peers` is not bytes."""
    if not isinstance(peers, bytes):
        return b""
    return peers[: min(len(peers) // size, MAX_PEERS) * size]


def _listed(peers: Any) -> tuple[bytes, bytes]:
    """Return the peers of a list of dictionaries in compact form, IPv4 and IPv6; those with names are left out."""
    found: dict[int, bytes] = {4: b"", 6: b""}
    for peer in peers[:MAX_PEERS] if isinstance(peers, list) else ():
        if not isinstance(peer, dict) or not isinstance(peer.get(b"ip"), bytes):
            continue
        port = peer.get(b"port")
        try:
            address = ipaddress.ip_address(peer[b"ip"].decode("ascii"))
        except ValueError:  # the host is a name, or is not text
            continue
        if isinstance(port, int) and 0 < port <= 0xFFFF and getattr(address, "scope_id", None) is None:
            found[address.version] += address.packed + port.to_bytes(_PORT_BYTES, "big")
    return found[4], found[6]
