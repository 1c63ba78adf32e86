"""The same messages as struct, protobuf, JSON and Cap'n Proto, made of one schema. Pure.

A message is a dict; `decode(encode(it))` is it again, in every format, so that all do the same work.
"""

import base64
import json
import struct
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tunnel_pool.system.errors import UserError

Values = dict[str, Any]
U32, U64, F64, BOOL, BYTES, TEXT = "u32", "u64", "f64", "bool", "bytes", "text"


class Field(NamedTuple):
    """Describes a field of a message; `kind` may be the name of another message, which is then inside."""

    name: str
    kind: str
    repeated: bool = False


Schema = Mapping[str, tuple[Field, ...]]

# After rpc/control.proto. Names have no underscores, which Cap'n Proto does not allow.
SCHEMA: Schema = {
    "peer": (Field("key", BYTES), Field("host", TEXT), Field("port", U32), Field("flags", U32, True)),
    "circuit": (
        Field("id", U32), Field("goal", U32), Field("ctype", TEXT), Field("hops", "peer", True),
        Field("closing", BOOL), Field("up", U64), Field("down", U64), Field("created", F64), Field("active", F64),
    ),
    "build": (Field("id", U32), Field("goal", U32), Field("ctype", TEXT), Field("flags", U32, True)),
    "dead": (Field("id", U32), Field("reason", TEXT)),
    "heartbeat": (Field("late", F64),),
    "sync": (Field("circuits", "circuit", True), Field("candidates", "peer", True), Field("gone", U32, True)),
    # After AllChannelCommunity of Tribler 6 (its conversion.py): torrents of channels, votes, searches.
    "torrent": (
        Field("infohash", BYTES), Field("timestamp", U64), Field("name", TEXT), Field("files", TEXT, True),
        Field("trackers", TEXT, True),
    ),
    "channel": (Field("cid", BYTES), Field("torrents", "torrent", True)),
    "channelcast": (Field("channels", "channel", True),),
    "request": (Field("cid", BYTES), Field("infohashes", BYTES, True)),
    "search": (Field("keywords", TEXT, True),),
    "response": (Field("keywords", TEXT, True), Field("channels", "channel", True)),
    "vote": (Field("cid", BYTES), Field("vote", U32), Field("timestamp", U64)),
}  # fmt: skip


class Codec(NamedTuple):
    """Encodes and decodes one kind of message."""

    encode: Callable[[Values], bytes]
    decode: Callable[[bytes], Values]


def _struct_codec(schema: Schema, name: str) -> Codec:
    """Return a codec of fields in order, big endian; bytes, texts and lists have their length in two bytes first."""

    def encode(values: Values) -> bytes:
        parts: list[bytes] = []
        write(values, parts.append)
        return b"".join(parts)

    def decode(data: bytes) -> Values:
        values: Values = read(data, 0)[0]
        return values

    write, read = _struct_message(schema, name)
    return Codec(encode, decode)


_FIXED = {U32: "I", U64: "Q", F64: "d", BOOL: "?"}
_LENGTH = struct.Struct("!H")
_Write = Callable[[Any, Callable[[bytes], None]], None]
_Read = Callable[[bytes, int], tuple[Any, int]]


def _struct_message(schema: Schema, name: str) -> tuple[_Write, _Read]:
    fields = [(field.name, *_struct_field(schema, field)) for field in schema[name]]

    def write(values: Any, add: Callable[[bytes], None]) -> None:
        for key, write_field, _ in fields:
            write_field(values[key], add)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = {}
        for key, _, read_field in fields:
            values[key], at = read_field(data, at)
        return values, at

    return write, read


def _struct_field(schema: Schema, field: Field) -> tuple[_Write, _Read]:
    write, read = _struct_kind(schema, field.kind)
    if not field.repeated:
        return write, read

    def write_all(values: Any, add: Callable[[bytes], None]) -> None:
        add(_LENGTH.pack(len(values)))
        for value in values:
            write(value, add)

    def read_all(data: bytes, at: int) -> tuple[Any, int]:
        (number,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        values = []
        for _ in range(number):
            value, at = read(data, at)
            values.append(value)
        return values, at

    return write_all, read_all


def _struct_kind(schema: Schema, kind: str) -> tuple[_Write, _Read]:
    if kind in schema:
        return _struct_message(schema, kind)
    if kind in _FIXED:
        fixed = struct.Struct("!" + _FIXED[kind])
        return (
            lambda value, add: add(fixed.pack(value)),
            lambda data, at: (fixed.unpack_from(data, at)[0], at + fixed.size),
        )

    def write(value: Any, add: Callable[[bytes], None]) -> None:
        data = value.encode() if kind == TEXT else value
        add(_LENGTH.pack(len(data)) + data)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, at)[0]
        return (data[start:end].decode() if kind == TEXT else data[start:end]), end

    return write, read


def _json_codec(schema: Schema, name: str) -> Codec:
    """Return a codec of JSON without spaces; bytes are written as base64."""

    def to_json(values: Values, message: str) -> Values:
        return {field.name: _each(field, values[field.name], one_to_json) for field in schema[message]}

    def one_to_json(kind: str, value: Any) -> Any:
        if kind == BYTES:
            return base64.b64encode(value).decode()
        return to_json(value, kind) if kind in schema else value

    def from_json(values: Values, message: str) -> Values:
        return {field.name: _each(field, values[field.name], one_from_json) for field in schema[message]}

    def one_from_json(kind: str, value: Any) -> Any:
        if kind == BYTES:
            return base64.b64decode(value)
        return from_json(value, kind) if kind in schema else value

    return Codec(
        lambda values: json.dumps(to_json(values, name), separators=(",", ":")).encode(),
        lambda data: from_json(json.loads(data), name),
    )


def _each(field: Field, value: Any, convert: Callable[[str, Any], Any]) -> Any:
    return [convert(field.kind, each) for each in value] if field.repeated else convert(field.kind, value)


_PROTOBUF_TYPES = {U32: 13, U64: 4, F64: 1, BOOL: 8, BYTES: 12, TEXT: 9}  # descriptor.proto, FieldDescriptorProto.Type
_PROTOBUF_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _protobuf_classes(schema: Schema) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="experiment.proto", package="experiment", syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields, 1):
            label = _REPEATED if field.repeated else _OPTIONAL
            added = message.field.add(name=field.name, number=number, label=label)
            added.type = _PROTOBUF_TYPES.get(field.kind, _PROTOBUF_MESSAGE)  # type: ignore[assignment]
            if field.kind in schema:
                added.type_name = f".experiment.{field.kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"experiment.{name}")) for name in schema}


def _protobuf_codec(schema: Schema, name: str) -> Codec:
    message = _protobuf_classes(schema)[name]

    def values_of(of: Any, kind: str) -> Values:
        return {field.name: _each(field, getattr(of, field.name), one) for field in schema[kind]}

    def one(kind: str, value: Any) -> Any:
        return values_of(value, kind) if kind in schema else value

    return Codec(
        lambda values: message(**values).SerializeToString(),
        lambda data: values_of(message.FromString(data), name),
    )


_CAPNP_TYPES = {U32: "UInt32", U64: "UInt64", F64: "Float64", BOOL: "Bool", BYTES: "Data", TEXT: "Text"}


def capnp_schema(schema: Schema) -> str:
    """Return the schema of all messages in Cap'n Proto's language."""
    lines = ["@0xdbb9ad1f14bf0b36;"]
    for name, fields in schema.items():
        lines.append(f"struct {name.capitalize()} {{")
        for number, field in enumerate(fields):
            kind = _CAPNP_TYPES.get(field.kind, field.kind.capitalize())
            lines.append(f"  {field.name} @{number} :{f'List({kind})' if field.repeated else kind};")
        lines.append("}")
    return "\n".join(lines) + "\n"


@cache
def _capnp_module(text: str) -> Any:
    """Raises UserError where pycapnp is not installed."""
    try:
        import capnp
    except ImportError:
        raise UserError("Cap'n Proto can't be measured: pip install pycapnp") from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.capnp"
        path.write_text(text)
        return capnp.load(str(path))


def _capnp_codec(schema: Schema, name: str) -> Codec:
    """Return a codec that packs its messages, as is advised where bytes count. Raises UserError without pycapnp."""
    message = getattr(_capnp_module(capnp_schema(schema)), name.capitalize())
    return Codec(
        lambda values: bytes(message.new_message(**values).to_bytes_packed()),
        lambda data: dict(message.from_bytes_packed(data).to_dict(verbose=True)),
    )


CODECS: dict[str, Callable[[Schema, str], Codec]] = {
    "struct": _struct_codec,
    "protobuf": _protobuf_codec,
    "json": _json_codec,
    "capnp": _capnp_codec,
}


def codec(format_name: str, message: str) -> Codec:
    """Raises UserError."""
    return CODECS[format_name](SCHEMA, message)
