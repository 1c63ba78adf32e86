"""Asks the web: by HTTPS through circuits of its own, or directly in the owner's own network."""

import asyncio
import itertools
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import aiohttp
from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError, ProxyType

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.outside.urls import NotNowError, OutsideError, Place, Way, kept_to_device, place_of
from tunnel_pool.overlay.ground.lanes import MAX_GROUP, Lane
from tunnel_pool.socks5.address import AddressType, Socks5Address
from tunnel_pool.socks5.messages import ReplyCode
from tunnel_pool.socks5.server import CannotListenError
from tunnel_pool.torrent.anonymous_torrents import HTTPS_PORT
from tunnel_pool.torrent.links import is_link
from tunnel_pool.torrent.network_words import way_out_in_words
from tunnel_pool.torrent.sessions.dispatch import new_secret, serve_session

MAX_REDIRECTS = 5
MAX_LANES = 3  # how many circuits are tried, each over other nodes, as far as there are others
CIRCUIT_WITHIN_S = 60.0
POLL_S = 0.1
TIMEOUT = aiohttp.ClientTimeout(total=120.0, sock_connect=30.0, sock_read=30.0)
BUSY = frozenset((429, 503))
REDIRECTS = frozenset((301, 302, 303, 307, 308))
# The same of everybody; without `identity`, a server could send what grows without end.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible)", "Accept-Encoding": "identity", "Accept": "*/*"}
_SOMEWHERE = Socks5Address(AddressType.IPV4, "192.0.2.1", HTTPS_PORT)  # RFC 5737: no connection is made to it
# Isolation groups apart from those of torrents, which count from one (torrent/isolation.py).
_groups = itertools.cycle(range(MAX_GROUP // 2, MAX_GROUP))


class Fetched(NamedTuple):
    body: bytes
    magnet: str = ""  # the magnet link to which the server redirects
    charset: str = ""  # as the server names it


class _WayError(Exception):
    """Says what went wrong on the way, which another circuit may not have."""


Answer = TypeVar("Answer")
_Ask = Callable[[aiohttp.ClientSession], Awaitable[Answer]]  # raises OutsideError and _WayError


class WebClient:
    """Opens a session for what belongs together, such as a feed and the torrents that it names."""

    def __init__(self, tunnels: Tunnels, *, tunnel_all_tls: bool = False, device: str = "") -> None:
        self._tunnels = tunnels
        self._tunnel_all_tls = tunnel_all_tls
        self._device = device

    def place_of(self, text: str, source: Place | None = None) -> Place:
        """Return where a URL leads (urls.py). Raises OutsideError."""
        return kept_to_device(place_of(text, source, tunnel_all_tls=self._tunnel_all_tls), self._device)

    @asynccontextmanager
    async def session(self, hops: int) -> AsyncIterator["WebSession"]:
        """Yield a session whose requests share circuits of this many hops, which nothing else uses."""
        async with AsyncExitStack() as stack:
            yield WebSession(self, _Tunnelled(self._tunnels, hops, stack), stack)


class WebSession:
    def __init__(self, client: WebClient, tunnelled: "_Tunnelled", stack: AsyncExitStack) -> None:
        self._client = client
        self._tunnelled = tunnelled
        self._stack = stack
        self._direct: aiohttp.ClientSession | None = None

    async def fetch(self, place: Place, most_bytes: int) -> tuple[Fetched, Place]:
        """Return what a place holds, and where it was in the end. Raises OutsideError.

        Each redirection is judged anew, as named by the place that redirects.
        """
        for _ in range(MAX_REDIRECTS + 1):
            given = await self._ask(place, partial(_get, place=place, most_bytes=most_bytes))
            if isinstance(given, Fetched):
                return given, place
            if is_link(given):
                return Fetched(b"", given), place
            place = self._client.place_of(given, place)
        raise OutsideError(f"it redirects more than {MAX_REDIRECTS} times")

    async def post(self, place: Place, told: object) -> None:
        """Post an object as JSON. A redirection is not followed. Raises OutsideError."""
        await self._ask(place, partial(_post, place=place, told=told))

    async def _ask(self, place: Place, ask: "_Ask[Answer]") -> Answer:
        if place.way is Way.TUNNELS:
            return await self._tunnelled.ask(ask)
        if self._direct is None:
            self._direct = await self._stack.enter_async_context(_http(aiohttp.TCPConnector(ssl=await _trust())))
        try:
            return await ask(self._direct)
        except _WayError as error:
            raise OutsideError(str(error)) from None


class _Tunnelled:
    """Asks through a lane of its own, and through other ones if that fails."""

    def __init__(self, tunnels: Tunnels, hops: int, stack: AsyncExitStack) -> None:
        self._tunnels = tunnels
        self._hops = hops
        self._stack = stack
        self._lane: AsyncExitStack | None = None
        self._is_ready: Callable[[], bool] = lambda: False
        self._http: aiohttp.ClientSession

    async def ask(self, ask: "_Ask[Answer]") -> Answer:
        """Return what is answered. Raises OutsideError."""
        why = ""
        for _ in range(MAX_LANES):
            await self._open()
            try:
                await self._wait()
                return await ask(self._http)
            except _WayError as error:
                why = str(error)
                await self._close()
        raise OutsideError(f"{why}; {MAX_LANES} circuits were tried")

    async def _open(self) -> None:
        if self._lane is not None:
            return
        lane, secret = Lane(self._hops, next(_groups)), new_secret()
        dispatcher, server = serve_session(
            self._tunnels, lane, lambda is_lost: None, steering=True, secret=secret, may_speak_tls=True
        )
        self._lane = await self._stack.enter_async_context(AsyncExitStack())
        self._lane.callback(dispatcher.end)
        self._lane.push_async_callback(server.close)
        try:
            port = server.listen()
        except CannotListenError as error:
            raise OutsideError(str(error)) from None
        self._lane.callback(self._tunnels.end_tunnels, *lane)
        self._tunnels.build_tunnels(*lane)
        self._is_ready = lambda: dispatcher.is_for_streams(_SOMEWHERE)
        connector = ProxyConnector(
            server.address[0],
            port,
            ProxyType.SOCKS5,
            secret.user,
            secret.password,
            rdns=True,
            ssl=await _trust(),
        )
        self._http = await self._lane.enter_async_context(_http(connector))

    async def _close(self) -> None:
        if self._lane is not None:
            lane, self._lane = self._lane, None
            await lane.aclose()

    async def _wait(self) -> None:
        """Wait until a circuit carries streams. Raises OutsideError."""
        try:
            async with asyncio.timeout(CIRCUIT_WITHIN_S):
                while not self._is_ready():  # noqa: ASYNC110 - circuits change in many ways
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            why = way_out_in_words(self._tunnels) or "the exits that are known carry no streams (docs/DAEMON.md)"
            raise NotNowError(f"no circuit carried HTTPS within {CIRCUIT_WITHIN_S:.0f} s: {why}") from None


async def _trust() -> ssl.SSLContext:
    """Return the authorities that the system trusts, as they are now."""
    return await asyncio.to_thread(ssl.create_default_context)


def _http(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """Return a session that keeps no cookies, and heeds no proxy or password of the environment."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=HEADERS,
        timeout=TIMEOUT,
        trust_env=False,
        auto_decompress=False,
    )


async def _get(http: aiohttp.ClientSession, place: Place, most_bytes: int) -> Fetched | str:
    """Return the body of what is there, or where it redirects. Raises OutsideError and _WayError."""
    async with _answering(http.get(place.url, allow_redirects=False)) as response:
        if response.status in REDIRECTS and (location := response.headers.get("Location")):
            return location
        if response.status != 200:
            kind = NotNowError if response.status in BUSY else OutsideError
            raise kind(f"the server answers {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > most_bytes:
                raise OutsideError(f"it is larger than {most_bytes >> 20} MiB")
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", ""):
            unpacked = await asyncio.to_thread(_unpacked, bytes(body), encoding, most_bytes)
            return Fetched(unpacked, charset=response.charset or "")
        return Fetched(bytes(body), charset=response.charset or "")


async def _post(http: aiohttp.ClientSession, place: Place, told: object) -> None:
    """Raises OutsideError and _WayError."""
    async with _answering(http.post(place.url, json=told, allow_redirects=False)) as response:
        if response.status >= 300:
            raise OutsideError(f"the server answers {response.status}")


@asynccontextmanager
async def _answering(
    asking: AbstractAsyncContextManager[aiohttp.ClientResponse],
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the answer; what goes wrong meanwhile is a _WayError."""
    try:
        async with asking as response:
            yield response
    except ProxyError as error:
        raise _WayError(_reply_in_words(error.error_code)) from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise _WayError(_certificate_in_words(error.certificate_error)) from None
    except ssl.SSLCertVerificationError as error:
        raise _WayError(_certificate_in_words(error)) from None
    except (TimeoutError, ProxyTimeoutError):
        raise _WayError("the server did not answer in time") from None
    except aiohttp.ClientConnectorError:
        raise _WayError("the server is not there, or refuses the connection") from None
    except (aiohttp.ClientError, OSError, ProxyConnectionError, ValueError) as error:
        raise _WayError(f"the connection failed ({type(error).__name__})") from None


def _unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """Return a body that a server has packed though it was not asked to. Raises OutsideError."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise OutsideError("it is packed in a way that was not asked for")
    try:
        unpacked = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(body, most_bytes + 1)
    except zlib.error:
        raise OutsideError("it can't be unpacked") from None
    if len(unpacked) > most_bytes:
        raise OutsideError(f"it is larger than {most_bytes >> 20} MiB")
    return unpacked


def _reply_in_words(code: int | None) -> str:
    match code:
        case ReplyCode.NOT_ALLOWED:
            return "the exit does not carry HTTPS to there"
        case ReplyCode.HOST_UNREACHABLE:
            return "the exit can't find the server"
        case ReplyCode.CONNECTION_REFUSED:
            return "the server refuses the connection"
    return "the circuit was lost"


def _certificate_in_words(error: BaseException) -> str:
    why = getattr(error, "verify_message", "") or "it is not valid"
    return f"the server's certificate can't be trusted ({why}; the package ca-certificates has whom to trust)"
