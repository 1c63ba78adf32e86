"""Names of methods and keys: snake_case since Transmission 4.1, kebab-case and camelCase before. Pure."""

import re
from collections.abc import Callable
from typing import Any

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")

# Of session-get, the only ones that were camelCase; of free-space and torrent-add, those that always had underscores.
_CAMEL_IN_SESSION = {"seed_ratio_limit", "seed_ratio_limited"}
_AS_THEY_ARE = {"total_size"}
_IN_CAPITALS = {"is_utp": "isUTP"}


def snake(name: str) -> str:
    """Return a name of any form in snake_case."""
    return _CAPITAL.sub(r"_\1", name).lower().replace("-", "_")


def camel(name: str) -> str:
    if name in _IN_CAPITALS:
        return _IN_CAPITALS[name]
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def kebab(name: str) -> str:
    return camel(name) if name in _CAMEL_IN_SESSION else name if name in _AS_THEY_ARE else name.replace("_", "-")


def renamed(value: Any, name_of: Callable[[str], str]) -> Any:
    """Return the value with all keys in it renamed, however deep."""
    if isinstance(value, dict):
        return {name_of(key): renamed(inner, name_of) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, name_of) for inner in value]
    return value


def stats_name(name: str) -> str:
    """Return a name of session-stats in the form that it has there."""
    return kebab(name) if name in ("cumulative_stats", "current_stats") else camel(name)


CLASSIC_RESULTS: dict[str, Callable[[str], str]] = {"session_stats": stats_name, "torrent_rename_path": camel}
"""How a method's result was spelt, where it is not kebab-case; torrent-get's keys are as they were asked for."""
