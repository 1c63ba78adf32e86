"""Keeps an aiohttp application to the rules for browsers (web_rules.py)."""

from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict, CIMultiDictProxy

from tunnel_pool.system.proxies import FOR, HOST, Forwarded, Network, forwarded
from tunnel_pool.system.web_rules import ALWAYS, SET_PAGE_COOKIE, WebRefusal, web_refusal

FORWARDED: Any = web.RequestKey("forwarded", Forwarded) if hasattr(web, "RequestKey") else "forwarded"


def keep_browser_rules(
    app: web.Application,
    host_names: Callable[[], Collection[str]],
    pages: Collection[str] = (),
    proxies: Callable[[], Collection[Network]] = lambda: (),
) -> None:
    """Refuse names that others point at us and pages of other sites, and have each answer say so to browsers.

    `pages` are the paths that a link of another site may open; what is answered there gets the page's cookie. What
    these `proxies` say of a request is in `FORWARDED`.
    """

    @web.middleware
    async def kept(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers, peer = request.headers, request.transport and request.transport.get_extra_info("peername")
        said = None
        if isinstance(peer, tuple):
            said = forwarded(headers.getall(FOR, []), headers.get(HOST), str(peer[0]), proxies())
        request[FORWARDED] = said
        if said is not None and said.host is not None:
            named = CIMultiDict(headers)
            named["Host"] = said.host
            headers = CIMultiDictProxy(named)
        refusal = web_refusal(request.method, request.path, headers, host_names(), pages)
        if refusal is WebRefusal.UNKNOWN_HOST:
            raise web.HTTPMisdirectedRequest(text=refusal.value)
        if refusal is not None:
            raise web.HTTPForbidden(text=refusal.value)
        return await handler(request)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(ALWAYS)
        if request.path in pages and response.status == 200:
            response.headers.add("Set-Cookie", SET_PAGE_COOKIE)

    app.middlewares.insert(0, kept)
    app.on_response_prepare.append(add_headers)
