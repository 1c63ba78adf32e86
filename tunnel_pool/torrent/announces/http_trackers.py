"""Adds to what libtorrent tells HTTP trackers (BEP 3). Pure."""

import re
from urllib.parse import unquote_to_bytes

from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.pace import Event

_EVENTS = {b"completed": Event.COMPLETED, b"started": Event.STARTED, b"stopped": Event.STOPPED}
_WORDS = {event: word for word, event in _EVENTS.items()}
_LINE_END = b"\r\n"
_FIRST = b"info_hash="  # of the parameters that libtorrent adds to a tracker's URL
_EVENT = re.compile(rb"(?<=[?&])event=([^&\s#]*)&?")
_PARAMETER = re.compile(rb"(?<=[?&])(info_hash|port|uploaded|downloaded|key)=([^&\s#]*)")


def infohash_of(request: bytes) -> bytes | None:
    """Return the infohash that a request announces; None where it asks for something else."""
    _, first, others = request.partition(_LINE_END)[0].rpartition(_FIRST)
    values: dict[bytes, bytes] = dict(_PARAMETER.findall(b"&" + first + others))
    if not {b"info_hash", b"port"} <= values.keys():
        return None
    return unquote_to_bytes(values[b"info_hash"])


def own_path_of(request: bytes) -> str:
    """Return the path and query of an announce that are its tracker's own, without what libtorrent adds."""
    target = request.partition(_LINE_END)[0].partition(b" ")[2].rpartition(_FIRST)[0]
    return target.rstrip(b"?&").decode("latin-1")


def event_of(request: bytes) -> Event:
    found = _EVENT.search(request.partition(_LINE_END)[0])
    return _EVENTS.get(found[1], Event.NONE) if found else Event.NONE


def with_event(request: bytes, event: Event) -> bytes:
    """Return an announce that tells of this event, and of no other."""
    line, end, headers = request.partition(_LINE_END)
    target, blank, version = line.rpartition(b" ")
    parameter = b"" if event is Event.NONE else b"&event=%s" % _WORDS[event]
    return _EVENT.sub(b"", target).rstrip(b"&") + parameter + blank + version + end + headers


def rewritten(request: bytes, port: int | None, account: Account | None) -> bytes:
    """Return an announce with this port, and what a torrent's account says; what is None stays as it is."""
    told = {} if port is None else {b"port": b"%d" % port}
    if account is not None:
        totals = account.tell()
        told |= {b"uploaded": b"%d" % totals.uploaded, b"downloaded": b"%d" % totals.downloaded}
        told[b"key"] = b"%08X" % account.key

    def value_of(found: re.Match[bytes]) -> bytes:
        name, value = found.groups()
        return b"%s=%s" % (name, told.get(name, value))

    line, end, headers = request.partition(_LINE_END)
    own, begin, libtorrents = line.rpartition(_FIRST)  # a private tracker's URL may have a key or port of its own
    return own + begin + _PARAMETER.sub(value_of, libtorrents) + end + headers
