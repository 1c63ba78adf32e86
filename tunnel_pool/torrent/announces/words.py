"""What a tracker said, or why it said nothing, in words for the owner of a torrent."""

from urllib.parse import parse_qsl, urlsplit

import libtorrent as lt

NO_TEXT = "it answers what is no text"
MAX_CHARACTERS = 200
# Of libtorrent's own errors (error_code.hpp): the tracker refuses, and libtorrent itself does not ask.
_REFUSED, _NOT_ASKED = 173, 201
_LOCAL_ALONE = "libtorrent asks an address of this machine or a local network for /announce alone"
_LIBTORRENTS_OWN = {"info_hash", "peer_id", "port", "uploaded", "downloaded", "left", "key", "event"}  # seen with 2.1.1
_OWN_PARAMETER = "libtorrent asks no tracker whose address has a {} of its own: give the torrent hops, or leave it out"
_NO_ANSWER = "its answer is none of a tracker"


def refusal_of(alert: lt.tracker_error_alert) -> tuple[str, bool]:
    """Return why a tracker has not given peers, and whether these are its own words."""
    error = alert.error
    category = error.category().name()
    if category == lt.libtorrent_category().name() and error.value() == _REFUSED:
        try:
            return _short(alert.failure_reason()) or "it refuses, and does not say why", True
        except UnicodeError:
            return NO_TEXT, True
    if category == lt.libtorrent_category().name() and error.value() == _NOT_ASKED:
        named = [name for name, _ in parse_qsl(urlsplit(alert.tracker_url()).query) if name in _LIBTORRENTS_OWN]
        return _OWN_PARAMETER.format(named[0]) if named else _LOCAL_ALONE, False
    if category == lt.bdecode_category().name():
        return f"{_NO_ANSWER} ({_short(error.message())})", False
    return _short(error.message()), False


def warning_of(alert: lt.tracker_warning_alert) -> str:
    """Return what a tracker warns of; libtorrent has it in the alert's whole message alone."""
    try:
        return _short(alert.message().partition(" warning: ")[2])
    except UnicodeError:
        return NO_TEXT


def _short(text: str) -> str:
    some = text[: 4 * MAX_CHARACTERS]
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in some).split())
    return line[:MAX_CHARACTERS]
