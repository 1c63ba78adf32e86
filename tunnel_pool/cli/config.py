"""tunnel-pool config: the daemon's configuration, checked and shown."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tunnel_pool.cli import daemon
from tunnel_pool.cli.arguments.layers import NO_OPTIONS, config_model, shown
from tunnel_pool.cli.arguments.parser import OneLineParser
from tunnel_pool.daemon.config import Watch
from tunnel_pool.system.errors import UserError

IN_TABLES = frozenset(("hops-of-labels", "hops-of-folders", "folders-of-labels", "watch"))
OF_THE_COMMAND_LINE = frozenset(("config", "json"))

DESCRIPTION = """The daemon's configuration: docs/daemon.toml is a sample.

  check    read the file, the environment and these options as the daemon would, and say what is wrong
  show     what holds then, and who said so
  default  all that can be set, with what holds where nobody says anything else, as a file to begin with

It takes the options of `tunnel-pool daemon`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["check", "show", "default"],
        help="check says what is wrong with the file, show prints what holds, default prints a file with every option.",
    )
    daemon.add_options(parser)
    parser.description = DESCRIPTION
    assert isinstance(parser, OneLineParser)
    parser.set_defaults(run=run, template="\n".join(_template(parser)))


with_config = daemon.with_config


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    options = daemon.options_of(arguments)
    if arguments.what == "default":
        return {"ok": True, "default": arguments.template}
    if arguments.what == "check":
        _check_watched(options.watches)
        return {"ok": True, "file": str(arguments.config) if arguments.config else None}
    settings = config_model(arguments).options
    return {
        "ok": True,
        "options": {key: [setting.value, setting.source] for key, setting in settings.items()},
        "tables": {
            "hops.labels": dict(options.rules.by_label),
            "hops.folders": dict(options.rules.by_folder),
            "folders": dict(options.folders_by_label),
        },
        "watch": [msgspec.to_builtins(watch) for watch in options.watches],
    }


def _check_watched(watches: Iterable[Watch]) -> None:
    """Raises UserError for a folder that is not there; the daemon itself waits for it."""
    for watch in watches:
        if not Path(watch.folder).is_dir():
            raise UserError(f"the watched folder {watch.folder} is not there")


def _template(parser: OneLineParser) -> Iterator[str]:
    """Yield the lines of a file in which everything is a comment, made of the options themselves."""
    yield "[daemon]"
    for action in parser.added:
        if not action.option_strings or action.dest in (*NO_OPTIONS, "help", "config", "template"):
            continue
        yield ""
        yield f"# {(action.help or '') % {'default': action.default}}"
        if action.nargs == 0:
            example = "true"
        else:
            value = shown(action.default)
            example = _quoted(value if value is not None else action.metavar)
        yield f"# {action.dest.replace('_', '-')} = {example}"
    yield ""
    yield "# Hop counts by label and by folder, folders by label, and folders to watch: see docs/daemon.toml."


def describe(report: dict[str, Any]) -> str:
    if "default" in report:
        return str(report["default"])
    if "options" not in report:
        return f"{report['file']} is right" if report["file"] else "the options are right; there is no file"
    return "\n".join(_shown(report))


def _shown(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a file that says what holds, and who said so."""
    yield "[daemon]"
    for key, (value, source) in report["options"].items():
        if key in IN_TABLES:
            continue
        comment = "# " if value is None or key in OF_THE_COMMAND_LINE else ""
        yield f"{comment}{key} = {_quoted(value) if value is not None else ''}  # {source}"
    for name, table in report["tables"].items():
        yield f"\n[{name}]"
        yield from (f"{_quoted(key)} = {_quoted(value)}" for key, value in table.items())
    for watch in report["watch"]:
        yield "\n[[watch]]"
        yield from (f"{key} = {_quoted(value)}" for key, value in watch.items() if value not in (None, []))


def _quoted(value: Any) -> str:
    """Return a value as TOML has it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
