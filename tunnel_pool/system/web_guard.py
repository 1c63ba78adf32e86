"""Keeps an aiohttp application to the rules for browsers (web_rules.py)."""

from collections.abc import Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.system.web_rules import ALWAYS, SET_PAGE_COOKIE, WebRefusal, web_refusal


def keep_browser_rules(
    app: web.Application, host_names: Callable[[], Collection[str]], pages: Collection[str] = ()
) -> None:
    """Refuse names that others point at us and pages of other sites, and have each answer say so to browsers.

    `pages` are the paths that a link of another site may open; what is answered there gets the page's cookie.
    """

    @web.middleware
    async def kept(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = web_refusal(request.method, request.path, request.headers, host_names(), pages)
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
