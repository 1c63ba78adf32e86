"""Runs a server of feeds, as a tracker's site does, and records each request with its client."""

from contextlib import asynccontextmanager
from xml.sax.saxutils import escape, quoteattr

from aiohttp import web


def feed_of(*items, title="a tracker"):
    """Return RSS 2.0 with items, each a title and where its torrent is."""
    entries = "".join(
        f"<item><title>{escape(name)}</title><guid>{escape(name)}</guid>"
        f'<enclosure url={quoteattr(url)} type="application/x-bittorrent" length="5"/></item>'
        for name, url in items
    )
    return f"<?xml version='1.0'?><rss version='2.0'><channel><title>{title}</title>{entries}</channel></rss>".encode()


class FeedServer:
    """`pages` has the bodies, or where to redirect, by path; `asked` who has asked for which path."""

    def __init__(self, address):
        self.address = address
        self.pages = {}
        self.asked = []
        self.told = []  # what is posted to it
        self.headers = []

    async def answer(self, request):
        self.asked.append((request.path_qs, request.remote))
        self.headers.append(dict(request.headers))
        if request.method == "POST":
            self.told.append(await request.json())
            return web.Response()
        page = self.pages.get(request.path)
        if page is None:
            raise web.HTTPNotFound
        if isinstance(page, str):
            return web.Response(status=302, headers={"Location": page})
        if callable(page):
            return await page(request)
        return web.Response(body=page)


@asynccontextmanager
async def feed_server(host, port=0, tls=None):
    app = web.Application()
    server = FeedServer((host, port))
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        server.address = runner.addresses[0]
        yield server
    finally:
        await runner.cleanup()
