"""Options from a file, the environment and the command line, each over those before; and who said what."""

import argparse
import contextlib
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunnel_pool.daemon.config import DaemonConfig, read_config
from tunnel_pool.daemon.server.api import model
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.toml_file import arguments_of

PREFIX = "TUNNEL_POOL_"  # how the names of environment variables begin
NO_OPTIONS = frozenset(("command", "run", "what", "config_read", "sources", "again", "template"))
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

Parse = Callable[[list[str]], argparse.Namespace]


def layered(arguments: argparse.Namespace, parse: Parse, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options that hold, with `config_read`, `sources` and `again`, which rereads. Raises UserError."""
    options = {name: value for name, value in vars(arguments).items() if name not in NO_OPTIONS}
    flags = {name for name, value in options.items() if isinstance(value, bool)}
    by_environment = environment_arguments(os.environ, options, flags)
    path: Path | None = parse(by_environment).config
    config = read_config(path) if path is not None else DaemonConfig()
    by_file = arguments_of(config.daemon, "daemon", path) if path is not None else []
    found = parse([*by_file, *by_environment])
    found.config_read = config
    found.sources = {
        **dict.fromkeys(options, "default"),
        **dict.fromkeys(named(by_file, options), "file"),
        **dict.fromkeys(named(by_environment, options), "environment"),
        **dict.fromkeys(named(argv, options), "command line"),
    }
    found.again = lambda: _again(lambda: layered(arguments, parse, argv))
    return found


def _again(read: Callable[[], argparse.Namespace]) -> argparse.Namespace:
    """Read the options again. Raises UserError also for errors at which a parser would end the program."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return read()
        except SystemExit:
            raise UserError(said.getvalue().strip() or "an option is wrong") from None


def environment_arguments(
    environment: Mapping[str, str], options: Collection[str], flags: Collection[str]
) -> list[str]:
    """Turn TUNNEL_POOL_MIN_FREE into --min-free; others of that prefix are not ours. Raises UserError."""
    arguments = []
    for name in sorted(options):
        variable = PREFIX + name.upper()
        value = environment.get(variable)
        option = f"--{name.replace('_', '-')}"
        if not value:
            continue
        if name not in flags:
            arguments.append(f"{option}={value}")
        elif value.lower() in YES:
            arguments.append(option)
        elif value.lower() not in NO:
            raise UserError(f"{variable} must be {YES[1]} or {NO[1]}, not {value!r}")
    return arguments


def named(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the options that these words name."""
    names = (word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    return [name for name in names if name in options]


def shown(value: Any) -> str | int | float | bool | None:
    """Return an option's value as it would be written, None where it names nothing."""
    match value:
        case bool() | int() | float():
            return value
        case tuple() if not value:  # --dht=none
            return "none"
        case None | [] | {}:
            return None
        case (bool() as is_default, tuple() as addresses):  # --bootstrap
            return "default" if is_default else ",".join(map(str, addresses)) or "none"
    return _written(value)


def _written(value: Any) -> str:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return ",".join(f"{key}={each}" for key, each in value.items())
        case HostPort() | WorkerRange():
            return str(value)
        case tuple() | list():
            return ",".join(map(str, value))
    return str(value)


def config_model(arguments: argparse.Namespace) -> model.Config:
    """Return which options hold and who set them, as the API shows it."""
    return model.Config(
        options={
            name.replace("_", "-"): model.Setting(value=shown(getattr(arguments, name)), source=source)
            for name, source in sorted(arguments.sources.items())
        }
    )
