"""Feeds stream parsers with valid input, whole, byte by byte and in pieces, and with mutated input."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def feed_whole(decoder: Any, data: bytes) -> list[Any]:
    return list(decoder.feed(data))


def feed_bytewise(decoder: Any, data: bytes) -> list[Any]:
    return [item for i in range(len(data)) for item in decoder.feed(data[i : i + 1])]


def feed_pieces(decoder: Any, data: bytes, cuts: Iterable[int]) -> list[Any]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [item for a, b in itertools.pairwise(edges) for item in decoder.feed(data[a:b])]


def outcome(function: Callable[[], T], error: type[Exception]) -> T | None:
    """Return the function's result, or None if it raises the declared error; other errors fail the test."""
    try:
        return function()
    except error:
        return None


@st.composite
def mutations(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Draw a valid message with a few bytes changed, inserted, deleted or cut off."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "cut", "insert", "delete"])):
            case "set":
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "delete":
                del data[at]
    return bytes(data)
