"""The paths of qBittorrent's API, and the cookie by which its clients are known."""

from aiohttp import web

ROOT = "/api/v2/"
LOGIN, LOGOUT = f"{ROOT}auth/login", f"{ROOT}auth/logout"


def cookie_of(request: web.Request) -> str:
    """Return the cookie's name; it has our port in it, as browsers send cookies to all ports of a host."""
    place = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return f"QBT_SID_{place[1] if place else 0}"
