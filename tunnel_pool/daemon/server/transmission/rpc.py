"""Both forms of a request: Transmission's own, and JSON-RPC 2.0 since its version 4.1."""

import logging
from typing import Any

import msgspec

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.server.transmission.methods import Methods
from tunnel_pool.daemon.server.transmission.names import CLASSIC_RESULTS, camel, kebab, renamed, snake
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.system.errors import kind_of

# jsonrpc.org/specification 5.1
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
MAX_BATCH = 100

logger = logging.getLogger(__name__)


class _CannotError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answer(methods: Methods, body: bytes) -> bytes | None:
    """Return the answer to a request, None when none is asked for."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return msgspec.json.encode({"result": "no JSON", "arguments": {}})
    if isinstance(request, list):
        if not 0 < len(request) <= MAX_BATCH:
            return msgspec.json.encode(_failure(None, INVALID_REQUEST, f"1 to {MAX_BATCH} requests at a time"))
        answers = [answer for one in request if (answer := await _json_rpc(methods, one)) is not None]
        return msgspec.json.encode(answers) if answers else None
    is_json_rpc = isinstance(request, dict) and "jsonrpc" in request
    result = await (_json_rpc if is_json_rpc else _classic)(methods, request)
    return msgspec.json.encode(result) if result is not None else None


async def _classic(methods: Methods, request: object) -> dict[str, object]:
    if not isinstance(request, dict):
        return {"result": "no method name", "arguments": {}}
    answer: dict[str, object] = {"arguments": {}, "result": "success"}
    if "tag" in request:
        answer["tag"] = request["tag"]
    try:
        method, result = await _run(methods, request.get("method"), request.get("arguments", {}))
        answer["arguments"] = _classic_keys(method, result)
    except _CannotError as error:
        answer["result"] = str(error)
    return answer


def _classic_keys(method: str, result: dict[str, Any]) -> dict[str, Any]:
    if method == "torrent_get":  # a torrent's own keys are as they were asked for, those in them were camelCase
        return {
            key: rows if isinstance(rows, msgspec.Raw) else [_classic_torrent(torrent) for torrent in rows]
            for key, rows in result.items()
        }
    if method == "torrent_add":
        return {kebab(key): renamed(dict(told), camel) for key, told in result.items()}
    spelt: dict[str, object] = renamed(result, CLASSIC_RESULTS.get(method, kebab))
    return spelt


def _classic_torrent(torrent: object) -> object:
    """Return an object, a row of a table, or a number of one that was removed."""
    if isinstance(torrent, dict):
        return {key: renamed(value, camel) for key, value in torrent.items()}
    return renamed(torrent, camel)


async def _json_rpc(methods: Methods, request: object) -> dict[str, object] | None:
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        return _failure(None, INVALID_REQUEST, 'no JSON-RPC 2.0 request: "jsonrpc" must be "2.0"')
    number = request.get("id")
    if not isinstance(number, int | float | str | None):
        return _failure(None, INVALID_REQUEST, "`id` must be a number or text")
    try:
        _, result = await _run(methods, request.get("method"), request.get("params", {}))
    except _CannotError as error:
        return _failure(number, error.code, str(error)) if "id" in request else None
    return {"jsonrpc": "2.0", "result": result, "id": number} if "id" in request else None


def _failure(number: object, code: int, message: str) -> dict[str, object]:
    error = {"code": code, "message": message, "data": {"error_string": message}}
    return {"jsonrpc": "2.0", "error": error, "id": number}


async def _run(methods: Methods, name: object, arguments: object) -> tuple[str, dict[str, object]]:
    """Return the method in snake_case, and its result. Raises _CannotError."""
    method = snake(name) if isinstance(name, str) else ""
    if method not in methods:
        raise _CannotError(METHOD_NOT_FOUND, "method name not recognized" if method else "no method name")
    if not isinstance(arguments, dict):
        raise _CannotError(INVALID_PARAMS, "the arguments must be an object")
    given = {snake(key): value for key, value in arguments.items() if value is not None}  # null is as not given
    try:
        return method, await methods.run(method, given)
    except RequestError as error:
        raise _CannotError(INVALID_PARAMS, str(error)) from None
    except StoreError as error:
        raise _CannotError(INTERNAL_ERROR, f"the change could not be saved: {error}") from None
    except Exception as error:
        logger.error("A request failed unexpectedly: %s", kind_of(error))
        logger.debug("The traceback of the failure", exc_info=True)
        raise _CannotError(INTERNAL_ERROR, "unexpected error, please report it") from None
