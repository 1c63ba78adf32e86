"""The daemon's HTTP server: what guards it, Transmission's RPC and its pages, metrics."""

import hmac
import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.registry import Collector

from tunnel_pool.daemon.server.entrance import Entrance
from tunnel_pool.daemon.server.guard import Credentials
from tunnel_pool.daemon.server.qbittorrent import paths as qbittorrent
from tunnel_pool.daemon.server.transmission import rpc
from tunnel_pool.daemon.server.transmission.methods import Methods
from tunnel_pool.daemon.server.transmission.session import RPC_VERSION_SEMVER
from tunnel_pool.node.metrics import CONTENT_TYPE, exposition
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.errors import kind_of
from tunnel_pool.system.proxies import Network
from tunnel_pool.system.web_guard import keep_browser_rules

logger = logging.getLogger(__name__)

USUAL_ADDRESS = HostPort("127.0.0.1", 9091)  # Transmission's
SESSION_HEADER = "X-Transmission-Session-Id"
VERSION_HEADER = "X-Transmission-Rpc-Version"
RPC_PATH = "/transmission/rpc"
METRICS_PATH = "/metrics"
WEB_PATH = qbittorrent.WEB_PATH
PAGES = ("/", "/transmission", "/transmission/", WEB_PATH.rstrip("/"), WEB_PATH)  # all that links of others may open
MAX_BODY_BYTES = 96 << 20  # a torrent file of 64 MiB in base64, and what is around it


@dataclass(frozen=True, slots=True)
class WebOptions:
    listen: HostPort = USUAL_ADDRESS
    credentials: Credentials | None = None
    host_names: Collection[str] = ()  # beside localhost and addresses
    web_root: Path | None = None  # the folder of a page that speaks the RPC
    trusted_proxies: Collection[Network] = ()  # whose word on who asks, and by which name, is taken


def new_session_id() -> str:
    return secrets.token_urlsafe(32)


def make_app(options: Callable[[], WebOptions], entrance: Entrance) -> web.Application:
    """Return an app guarded by the options of the moment, with nothing in it yet."""
    app = web.Application(middlewares=[_guard(options, entrance)], client_max_size=MAX_BODY_BYTES)
    keep_browser_rules(app, lambda: options().host_names, PAGES, lambda: options().trusted_proxies)
    return app


def add_rpc(app: web.Application, methods: Methods, session_id: str) -> None:
    rpc_handler = _rpc_handler(methods, session_id)
    for path in (RPC_PATH, RPC_PATH + "/"):
        app.router.add_route("*", path, rpc_handler)


def add_metrics(app: web.Application, metrics: Collector) -> None:
    app.router.add_get(METRICS_PATH, _metrics_handler(metrics))


def _guard(options: Callable[[], WebOptions], entrance: Entrance) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse strangers, and tell of what fails unexpectedly in one line."""
        call = qbittorrent.call_of(request.path)
        if call is not None:
            if call != qbittorrent.LOGIN:
                entrance.check_login(request, options().credentials, qbittorrent.cookie_of(request))
        else:
            entrance.check(request, options().credentials)
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except web.RequestPayloadError:
            raise web.HTTPBadRequest(text="the body is not in the Content-Encoding that it says it is in\n") from None
        except Exception as error:
            logger.error("A request failed unexpectedly: %s", kind_of(error))
            logger.debug("The traceback of the failure", exc_info=True)
            raise web.HTTPInternalServerError(text="unexpected error, please report it\n") from None

    return guarded


def _rpc_handler(methods: Methods, session_id: str) -> Handler:
    async def answer_rpc(request: web.Request) -> web.Response:
        headers = {SESSION_HEADER: session_id, VERSION_HEADER: RPC_VERSION_SEMVER}
        given = request.headers.get(SESSION_HEADER, "")
        if not hmac.compare_digest(given.encode(errors="replace"), session_id.encode()):
            return web.Response(status=409, headers=headers, text=f"{SESSION_HEADER}: {session_id}\n")
        if request.method != "POST":
            return web.Response(status=405, headers={**headers, "Allow": "POST"}, text="POST a request\n")
        answer = await rpc.answer(methods, await request.read())
        if answer is None:
            return web.Response(status=204, headers=headers)
        return web.Response(body=answer, headers=headers, content_type="application/json", charset="utf-8")

    return answer_rpc


def _metrics_handler(metrics: Collector) -> Handler:
    async def answer_metrics(request: web.Request) -> web.Response:
        return web.Response(body=exposition(metrics), headers={"Content-Type": CONTENT_TYPE})

    return answer_metrics


def add_web_root(app: web.Application, root: Path) -> None:
    """Add the page in this folder, after all that is answered otherwise below its path."""

    async def to_page(request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently(WEB_PATH)

    async def index(request: web.Request) -> web.FileResponse:
        return web.FileResponse(root / "index.html")

    for path in ("/transmission", "/transmission/", WEB_PATH.rstrip("/")):
        app.router.add_get(path, to_page)
    app.router.add_get(WEB_PATH, index)
    app.router.add_static(WEB_PATH, root)
