"""The page at /: files of this package, which ask the API for all that they show."""

from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

FILES = Path(__file__).parent / "page"
PATH = "/page/{name}"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application) -> None:
    files = {path.name: path for path in FILES.iterdir() if path.suffix in TYPES}

    async def file(request: web.Request) -> web.StreamResponse:
        if (path := files.get(request.match_info["name"])) is None:
            raise web.HTTPNotFound
        return _file(path)

    app.router.add_get("/", _index(files["index.html"]))
    app.router.add_get(PATH, file)


def _index(path: Path) -> Handler:
    async def index(request: web.Request) -> web.StreamResponse:
        return _file(path)

    return index


def _file(path: Path) -> web.FileResponse:
    return web.FileResponse(path, headers={**HEADERS, "Content-Type": TYPES[path.suffix]})
