"""Configuration files: TOML, checked as a whole before any of it counts."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tunnel_pool.system.errors import UserError


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file; a key that it does not know is an error."""


Config = TypeVar("Config", bound=Section)


def read_toml(
    path: Path,
    kind: type[Config],
    check: Callable[[Config], None],
    decode: Callable[[type, object], object] | None = None,
) -> Config:
    """Read a TOML file; `check` tests by ValueError what types can't. Raises UserError: which key is wrong, and how."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    try:
        config = msgspec.convert(tomllib.loads(text.decode()), kind, dec_hook=decode)
        check(config)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, ValueError) as error:
        raise UserError(f"{path}: {str(error).replace('`$.', '`')}") from None
    except RecursionError:
        raise UserError(f"{path}: tables or lists are nested too deeply") from None
    return config


def arguments_of(options: Mapping[str, Any], table: str, path: Path) -> list[str]:
    """Return a table of command line options as those, to be parsed as they are. Raises UserError."""
    arguments = []
    for key, value in options.items():
        if isinstance(value, bool):
            arguments += [f"--{key}"] if value else []
        elif isinstance(value, list):
            arguments += [f"--{key}={','.join(map(str, value))}"] if value else []
        elif isinstance(value, str | int):
            arguments.append(f"--{key}={value}")
        else:
            raise UserError(f"{path}: {table}.{key} is neither text nor a number, a list or true")
    return arguments
