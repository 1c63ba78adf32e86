"""Who may ask the daemon: by password, by the name it was asked under, by the page that asks. Pure."""

import base64
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from overlay.http import is_address

LOCAL_NAMES = ("localhost", "localhost.")


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str


def is_authorized(header: str | None, key: str | None, credentials: Credentials | None) -> bool:
    """Whether an Authorization header has them (RFC 7617), or a key is the password.

    It takes as long for any that has not.
    """
    if credentials is None:
        return True
    has_key = hmac.compare_digest((key or "").encode(errors="replace"), credentials.password.encode())
    scheme, _, encoded = (header or "").partition(" ")
    try:
        given = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except ValueError:
        given = b""
    return hmac.compare_digest(given, f"{credentials.user}:{credentials.password}".encode()) or has_key


def is_known_host(header: str | None, names: Collection[str]) -> bool:
    """Whether a Host header names us: by an address, as localhost, or by one of these names.

    Any other name is one that somebody else has pointed at our address (DNS rebinding).
    """
    if not header:
        return False
    try:
        host = urlsplit(f"//{header}").hostname or ""
        urlsplit(f"//{header}").port  # noqa: B018 - raises
    except ValueError:
        return False
    return host in LOCAL_NAMES or host in {name.lower() for name in names} or is_address(host)


def is_own_page(origin: str | None, host: str | None) -> bool:
    """Whether a request comes from no page, or from one of ours: browsers say which in the Origin header."""
    try:
        return origin is None or urlsplit(origin).netloc.lower() == (host or "").lower()
    except ValueError:
        return False


def is_fetched_by_others(site: str | None, destination: str | None) -> bool:
    """Whether a page of another site loads something of ours, by what browsers say of it (w3.org/TR/fetch-metadata).

    It sees no content, but whether there is any, and how large it is. Who follows a link to us comes by himself.
    """
    return site in ("cross-site", "same-site") and destination != "document"


def may_listen(address: str, credentials: Credentials | None) -> bool:
    """Beyond this machine with a password alone."""
    return credentials is not None or ipaddress.ip_address(address).is_loopback
