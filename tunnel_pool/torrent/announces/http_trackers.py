"""What HTTP trackers are told (BEP 3), beside what libtorrent tells them. Pure."""

import re
from urllib.parse import unquote_to_bytes

from tunnel_pool.torrent.announces.standing import Standing

_LINE_END = b"\r\n"
_PARAMETER = re.compile(rb"(?<=[?&])(info_hash|port|uploaded|downloaded|key)=([^&\s#]*)")
_NUMBER = re.compile(rb"\d{1,19}")


def infohash_of(request: bytes) -> bytes | None:
    """Return the infohash that a request announces; None where it asks for something else."""
    values = dict(_PARAMETER.findall(_target_of(request)))
    if not {b"info_hash", b"port"} <= values.keys():
        return None
    return unquote_to_bytes(values[b"info_hash"])


def rewritten(request: bytes, port: int | None, standing: Standing | None) -> bytes:
    """Return a request with this port, and a torrent's standing; what is None, or not there, stays as it is."""
    told = {} if port is None else {b"port": b"%d" % port}
    if standing is not None:
        told[b"key"] = b"%08X" % standing.key

    def value_of(found: re.Match[bytes]) -> bytes:
        name, value = found.groups()
        if standing is not None and _NUMBER.fullmatch(value):
            if name == b"uploaded":
                value = b"%d" % standing.uploaded_bytes(int(value))
            elif name == b"downloaded":
                value = b"%d" % standing.downloaded_bytes(int(value))
        return b"%s=%s" % (name, told.get(name, value))

    line, end, headers = request.partition(_LINE_END)
    return _PARAMETER.sub(value_of, line) + end + headers


def _target_of(request: bytes) -> bytes:
    return request.partition(_LINE_END)[0]
