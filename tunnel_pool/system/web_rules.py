"""Decides what browsers may be answered, whoever's page asks: rules for each HTTP server of ours. Pure.

A program that is no browser sends none of these headers and is not meant here: the password, or the user at the other
end of the connection, keeps strangers out. A browser runs the pages of strangers with its user's rights.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from urllib.parse import urlsplit

from tunnel_pool.overlay.ground.destinations import is_address

LOCAL_NAMES = ("localhost", "localhost.")
# Each answer has these. The opener of a window learns nothing of it (COOP), nor does a page that embeds an answer.
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Browsers send such a cookie with no link that another site's page opens; its content is no secret.
PAGE_COOKIE = "tunnel-pool-page"
SET_PAGE_COOKIE = f"{PAGE_COOKIE}=1; Path=/; HttpOnly; SameSite=Strict"
OWN_SITES = (None, "same-origin", "none")  # no browser (or an old one), a page of ours, the user


class WebRefusal(Enum):
    """Why a browser's request is refused."""

    UNKNOWN_HOST = "unknown host name; add it with --host-name, or ask by address\n"
    ANOTHER_PAGE = "a page of another site may not ask\n"
    ANOTHER_SITE = "a page of another site may not load this; to see it, open the page of this address first\n"


def web_refusal(
    method: str, path: str, headers: Mapping[str, str], host_names: Collection[str], pages: Collection[str]
) -> WebRefusal | None:
    """Return why a request is refused, None when it may be answered.

    `host_names` are ours beside localhost and addresses. `pages` are the paths that a link of another site may open:
    what they show must be the same whatever this program has, and each is to set `PAGE_COOKIE`.
    """
    host = headers.get("Host")
    if not is_known_host(host, host_names):
        return WebRefusal.UNKNOWN_HOST
    if not is_own_page(headers.get("Origin"), host):
        return WebRefusal.ANOTHER_PAGE
    is_page = method == "GET" and path in pages
    if is_of_another_site(headers):
        is_link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        return None if is_page and is_link else WebRefusal.ANOTHER_SITE
    if _is_bare_link(headers) and not is_page and f"{PAGE_COOKIE}=" not in headers.get("Cookie", ""):
        return WebRefusal.ANOTHER_SITE
    return None


def is_of_another_site(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that another site's page asks (w3.org/TR/fetch-metadata)."""
    return headers.get("Sec-Fetch-Site") not in OWN_SITES


def _is_bare_link(headers: Mapping[str, str]) -> bool:
    """Return whether a browser follows a link and does not say whose.

    By plain HTTP, browsers name the site to addresses of this machine alone. That a document is asked for, they say
    everywhere (w3.org/TR/upgrade-insecure-requests, section 3.2.2).
    """
    return "Sec-Fetch-Site" not in headers and "Upgrade-Insecure-Requests" in headers


def is_known_host(header: str | None, names: Collection[str]) -> bool:
    """Return whether a Host header names us: by an address, as localhost, or by one of these names.

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
    """Return whether a request comes from no page, or from one of ours: browsers say which in the Origin header."""
    try:
        return origin is None or urlsplit(origin).netloc.lower() == (host or "").lower()
    except ValueError:
        return False
