"""Decides which URLs may be asked for, such as a feed's and those that it names, and which way. Pure.

Through the tunnels: HTTPS alone, as an exit could read, and change, what comes by HTTP. Directly: only what the owner
has named on this machine or its own network, such as Prowlarr or Jackett; a feed from elsewhere can't lead there.
"""

from enum import Enum, auto
from ipaddress import ip_address
from typing import NamedTuple

from yarl import URL

from tunnel_pool.daemon.outside.private import address_of, is_private
from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.serving.inner_names import is_inner_name
from tunnel_pool.torrent.anonymous_torrents import HTTPS_PORT

MAX_URL_CHARACTERS = 2048


class OutsideError(Exception):
    """Says in one line why something of the web is not asked, or has not answered."""


class NotAllowedError(OutsideError):
    """Says why nobody is asked."""


class NotNowError(OutsideError):
    """Says why nothing can be asked just now, which is no fault of what was to be asked."""


class Way(Enum):
    TUNNELS = auto()
    DIRECT = auto()


class Place(NamedTuple):
    way: Way
    url: URL


def place_of(text: str, source: Place | None = None, *, tunnel_all_tls: bool = False) -> Place:
    """Return where a URL leads, and which way. Raises NotAllowedError.

    `source` is what names it, as a feed or by redirecting there; None if the owner does. With `tunnel_all_tls`, HTTPS
    goes through the tunnels whatever its address: the network is a private one, whose exits reach private addresses.
    """
    url = _parsed(text, source)
    address = address_of(url.host or "")
    if address is not None and is_private(address) and not (tunnel_all_tls and url.scheme == "https"):
        if source is not None and (source.way is not Way.DIRECT or source.url.origin() != url.origin()):
            raise NotAllowedError("it leads into a private network, where its source has no business")
        return Place(Way.DIRECT, url.with_host(str(address)))
    if url.scheme != "https":
        raise NotAllowedError(
            "by http:// an exit could read and change it: only https:// is asked, and machines of your own network by "
            "their IP address"
        )
    if url.port != HTTPS_PORT:
        raise NotAllowedError(f"exits carry HTTPS to port {HTTPS_PORT} alone, and not to port {url.port}")
    if address is None:
        _check_name(url.host or "")
    elif not is_allowed_destination(str(address), HTTPS_PORT, tunnel_all_tls):
        # An IPv6 address may name an IPv4 address of the owner's own network, which an exit would hear of.
        raise NotAllowedError("no exit carries anything to this address")
    return Place(Way.TUNNELS, url)


def kept_to_device(place: Place, device: str) -> Place:
    """Return a place that is asked by no device but this one; "" is any. Raises NotAllowedError."""
    if device and place.way is Way.DIRECT and not ip_address(place.url.host or "").is_loopback:
        raise NotAllowedError(f"nothing but this machine is asked directly, as all else goes by the device {device}")
    return place


def _parsed(text: str, source: Place | None) -> URL:
    """Return a URL, which may be relative to the URL of `source`. Raises NotAllowedError."""
    if len(text) > MAX_URL_CHARACTERS:
        raise NotAllowedError(f"its URL is longer than {MAX_URL_CHARACTERS} characters")
    try:
        url = URL(text.strip())
        if source is not None and not url.scheme:
            url = source.url.join(url)
        is_one = url.scheme in ("http", "https") and bool(url.host) and url.port not in (None, 0)
    except ValueError:
        is_one = False
    if not is_one:
        raise NotAllowedError("it is not a URL like https://example.org/path")
    if url.user is not None or url.password is not None:
        raise NotAllowedError("its URL has a user or a password before the host, which is not sent")
    return url.with_fragment(None)


def _check_name(host: str) -> None:
    if is_inner_name(host):
        raise NotAllowedError("an exit can't look up this name: write the IP address of a machine in your own network")
