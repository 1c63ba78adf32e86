"""A client of a running daemon, by the RPC that all others speak."""

import contextlib
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import aiohttp

from tunnel_pool.daemon.server.api.openapi import EVENTS_PATH
from tunnel_pool.daemon.server.guard import Credentials
from tunnel_pool.daemon.server.qbittorrent.labels import CATEGORY_IS_THERE
from tunnel_pool.daemon.server.web import RPC_PATH, SESSION_HEADER
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.errors import UserError

TIMEOUT_S = 60.0
MAX_EVENT_BYTES = 1 << 26  # the longest line, which holds all torrents
NO_DAEMON = "no daemon answers at {}; start one by `tunnel-pool daemon`, or name its --rpc"
OTHER_PASSWORD = "the daemon wants another user or password: --rpc-user, --rpc-password-file"  # noqa: S105


class Remote:
    """Asks a running daemon, inside an `async with`."""

    def __init__(self, address: HostPort, credentials: Credentials | None) -> None:
        self._address = address
        self._headers: dict[str, str] = {}
        authorization = aiohttp.BasicAuth(credentials.user, credentials.password, "utf-8") if credentials else None
        self._http = aiohttp.ClientSession(
            auth=authorization, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), read_bufsize=MAX_EVENT_BYTES
        )

    async def __aenter__(self) -> "Remote":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of one of Transmission's methods, all names in snake_case. Raises UserError."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": arguments}
        try:
            status, body = await self._post(request)
            if status == 409:
                status, body = await self._post(request)
            answer = json.loads(body) if status == 200 else None
        except TimeoutError:
            raise UserError(f"the daemon at {self._address} takes longer than {TIMEOUT_S:.0f} s") from None
        except (aiohttp.ClientError, OSError):
            raise UserError(NO_DAEMON.format(self._address)) from None
        except ValueError:
            answer = None
        if status == 401:
            raise UserError(OTHER_PASSWORD)
        if status == 429:
            raise UserError("too many wrong passwords were sent to the daemon: try again in a minute")
        if not isinstance(answer, dict) or ("result" not in answer and "error" not in answer):
            raise UserError(f"what answers at {self._address} is no daemon of tunnel-pool")
        if "error" in answer:
            raise UserError(answer["error"]["message"])
        result: dict[str, object] = answer["result"]
        return result

    async def add(self, torrent: dict[str, Any]) -> dict[str, Any]:
        """Add a torrent by our own API, and return its answer. Raises UserError."""
        return await self.api("POST", "/api/torrents", torrent)  # type: ignore[no-any-return]

    async def make_category(self, name: str, folder: str) -> None:
        """Make a category with its folder, unless there is one of this name. Raises UserError."""
        form = {"category": name, "savePath": folder}
        await self._posted("/api/v2/torrents/createCategory", CATEGORY_IS_THERE.encode(), data=form)

    async def api(self, method: str, path: str, body: object = None) -> Any:
        """Call an operation of our own API, and return its answer, None for an empty one. Raises UserError."""
        more: dict[str, Any] = {} if body is None else {"json": body}
        answer = await self._asked(method, path, **more)
        return json.loads(answer) if answer else None

    async def _posted(self, path: str, passed_over: bytes = b"\0", **body: Any) -> bytes:
        """Return the body of an answer. Raises UserError for an error, but for one with the body `passed_over`."""
        return await self._asked("POST", path, passed_over, **body)

    async def _asked(self, method: str, path: str, passed_over: bytes = b"\0", **body: Any) -> bytes:
        try:
            async with self._http.request(method, f"http://{self._address}{path}", **body) as response:
                answer, status = await response.read(), response.status
        except TimeoutError:
            raise UserError(f"the daemon at {self._address} takes longer than {TIMEOUT_S:.0f} s") from None
        except (aiohttp.ClientError, OSError):
            raise UserError(NO_DAEMON.format(self._address)) from None
        if status == 401:
            raise UserError(OTHER_PASSWORD)
        if status >= 400 and answer != passed_over:
            raise UserError(_why(answer))
        return answer

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the events of /api/events, with their data. Raises UserError, also at the end."""
        try:
            endless = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)
            async with self._http.get(f"http://{self._address}{EVENTS_PATH}", timeout=endless) as response:
                if response.status == 401:
                    raise UserError(OTHER_PASSWORD)
                name = ""
                async for line in response.content:
                    if line.startswith(b"event: "):
                        name = line[7:].strip().decode()
                    elif line.startswith(b"data: "):
                        yield name, json.loads(line[6:])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            raise UserError(NO_DAEMON.format(self._address)) from None
        raise UserError(f"the daemon at {self._address} has ended")

    async def _post(self, request: dict[str, object]) -> tuple[int, bytes]:
        url = f"http://{self._address}{RPC_PATH}"
        async with self._http.post(url, json=request, headers=self._headers) as response:
            if SESSION_HEADER in response.headers:
                self._headers[SESSION_HEADER] = response.headers[SESSION_HEADER]
            return response.status, await response.read()


def _why(answer: bytes) -> str:
    """Return the error in an answer, which is JSON or a text."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(answer)["error"])
    return answer.decode(errors="replace").strip()[:500]
