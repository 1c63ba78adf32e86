"""The paths of qBittorrent's API, and the cookie by which its clients are known.

A page at /transmission/web/ (--web-root) that was made for qBittorrent asks for `api/v2` below itself (VueTorrent).
"""

from aiohttp import web

WEB_PATH = "/transmission/web/"
ROOTS = ("/api/v2/", f"{WEB_PATH}api/v2/")
LOGIN, LOGOUT = "auth/login", "auth/logout"


def call_of(path: str) -> str | None:
    """Return which call of the API a path is, None for what is none."""
    return next((path.removeprefix(root) for root in ROOTS if path.startswith(root)), None)


def cookie_of(request: web.Request) -> str:
    """Return the cookie's name; it has our port in it, as browsers send cookies to all ports of a host."""
    place = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return f"QBT_SID_{place[1] if place else 0}"
