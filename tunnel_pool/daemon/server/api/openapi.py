"""The API's OpenAPI 3.1 document (spec.openapis.org/oas/v3.1.0), made of the list of operations."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tunnel_pool import __version__
from tunnel_pool.daemon.feeds.model import MAX_NAME
from tunnel_pool.daemon.server.api import model
from tunnel_pool.daemon.server.api.operations import Operation
from tunnel_pool.daemon.server.api.watcher import HISTORY_S
from tunnel_pool.overlay.ground.config import MAX_SLOTS

DOCUMENT_PATH = "/api/openapi.json"
EVENTS_PATH = "/api/events"
STREAM_PATH = "/stream/{infohash}/{index}"
_WORD = re.compile(r"{(\w+)}")
_WORDS: dict[str, dict[str, object]] = {
    "infohash": {"type": "string", "pattern": "^[0-9a-fA-F]{40}([0-9a-fA-F]{24})?$"},
    "slot": {"type": "integer", "minimum": 0, "maximum": MAX_SLOTS - 1},
    "circuit_id": {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFF},
    "index": {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFF},
    "number": {"type": "integer", "minimum": 1, "maximum": 0x7FFFFFFF},
    "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
    "files": {"type": "string", "enum": ["true", "false"]},
    "seconds": {"type": "integer", "minimum": 1, "maximum": HISTORY_S},
}
_EVENTS = {"state": model.State, "torrents": model.TorrentChanges, "happening": model.Happening}
JSON = "application/json"
_ADDED = "$response.body#/torrent/infohash"
_OF_ONE = ("torrent", "change", "remove", "files")


def document(operations: Iterable[Operation]) -> dict[str, object]:
    operations = list(operations)
    kinds: list[object] = [model.Problem, *_EVENTS.values()]
    kinds += [kind for operation in operations for kind in (operation.gives, operation.takes) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    # By repr: a list of models has no name of its own.
    schema_of = {repr(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, object]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    for path, own in (*_others(schema_of), *_streams(schema_of)):
        paths[path] = own
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tunnel-pool",
            "version": __version__,
            "description": (model.__doc__ or "").partition("\n\n")[2].strip(),
            "license": {"name": "GPL-3.0-or-later", "identifier": "GPL-3.0-or-later"},
        },
        "security": [{}, {"password": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
        },
    }


def _operation(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    status = operation.status if operation.gives is not None else 204
    done: dict[str, object] = {"description": "done"}
    if operation.gives is not None:
        done["content"] = {JSON: {"schema": schema_of[repr(operation.gives)]}}
    if operation.gives is model.Added:
        done["links"] = {name: {"operationId": name, "parameters": {"infohash": _ADDED}} for name in _OF_ONE}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {str(status): done, **_problems(schema_of, bool(_WORD.search(operation.path)))},
    }
    if parameters := _parameters(operation.path, operation.query or {}):
        found["parameters"] = parameters
    if operation.takes is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[repr(operation.takes)]}}}
        found["responses"]["415"] = _problem(schema_of, f"a body is {JSON}")
    return found


def _parameters(path: str, query: dict[str, str]) -> list[dict[str, object]]:
    in_path = [{"name": name, "in": "path", "required": True, "schema": _WORDS[name]} for name in _WORD.findall(path)]
    return in_path + [
        {"name": name, "in": "query", "required": False, "description": what, "schema": _WORDS[name]}
        for name, what in query.items()
    ]


def _problem(schema_of: dict[str, object], why: str) -> dict[str, object]:
    return {"description": why, "content": {JSON: {"schema": schema_of[repr(model.Problem)]}}}


def _problems(schema_of: dict[str, Any], names_one: bool) -> dict[str, Any]:
    problems = {"400": _problem(schema_of, "what was asked for can't be")}
    if names_one:
        problems["404"] = _problem(schema_of, "there is none of that name")
    problems["401"] = _text("user and password, please")
    problems["403"] = _text("a page of another site may not ask")
    problems["421"] = _text("unknown host name")
    problems["500"] = _problem(schema_of, "the change could not be saved on disk")
    return problems


def _text(why: str) -> dict[str, object]:
    return {"description": why, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _others(schema_of: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    names = ", ".join(f"`{name}` ({kind.__name__})" for name, kind in _EVENTS.items())
    stream = {"description": f"events: {names}", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    yield (
        EVENTS_PATH,
        {"get": {"operationId": "events", "summary": "Server-sent events", "responses": {"200": stream}}},
    )
    whole = {"description": "this document", "content": {JSON: {"schema": {"type": "object"}}}}
    yield (
        DOCUMENT_PATH,
        {"get": {"operationId": "document", "summary": "This document", "responses": {"200": whole}}},
    )


def _streams(schema_of: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    file = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    get = {
        "operationId": "stream",
        "summary": "A file while it downloads, in the order of its reader",
        "parameters": _parameters(STREAM_PATH, {}),
        "responses": {
            "200": {"description": "all of it", **file},
            "206": {"description": "the part that a Range header asks for", **file},
            "404": _problem(schema_of, "there is no such torrent or file"),
            "409": _problem(schema_of, "what is missing does not download now"),
            "416": _problem(schema_of, "no such part"),
        },
    }
    yield STREAM_PATH, {"get": get}
