"""tunnel-pool config: the daemon's configuration, checked and shown."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from tunnel_pool.cli import daemon
from tunnel_pool.cli.arguments.layers import NO_OPTIONS, config_model
from tunnel_pool.cli.arguments.parser import OneLineParser

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
    daemon.options_of(arguments)
    if arguments.what == "default":
        return {"ok": True, "default": arguments.template}
    if arguments.what == "check":
        return {"ok": True, "file": str(arguments.config) if arguments.config else None}
    options = config_model(arguments).options
    return {"ok": True, "options": {key: [setting.value, setting.source] for key, setting in options.items()}}


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
        elif action.default is None or action.default == []:
            example = f'"{action.metavar}"'
        else:
            example = json.dumps(str(action.default)) if not isinstance(action.default, int) else str(action.default)
        yield f"# {action.dest.replace('_', '-')} = {example}"
    yield ""
    yield "# Hop counts by label and by folder, folders by label, and folders to watch: see docs/daemon.toml."


def describe(report: dict[str, Any]) -> str:
    if "default" in report:
        return str(report["default"])
    if "options" not in report:
        return f"{report['file'] or 'without a file'}: as it should be"
    lines = ["[daemon]"]
    for key, (value, source) in report["options"].items():
        comment = "" if value is not None else "# "
        lines.append(f"{comment}{key} = {json.dumps(value) if value is not None else ''}  # {source}".rstrip())
    return "\n".join(lines)
