"""Every command and option as a page, made from the parsers: `python -m tunnel_pool.cli.reference docs/CLI.md`."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_state_path

from tunnel_pool.cli.main import COMMANDS, make_parser

HEAD = """# The commands

Made from the parsers by `python -m tunnel_pool.cli.reference docs/CLI.md`; `--help` of each command says the same.
"""


def markdown() -> str:
    """Return the text of docs/CLI.md."""
    sections = [HEAD]
    for command, what in COMMANDS.items():
        parser = _subparsers(make_parser([command]))[command]
        sections += _section(f"tunnel-pool {command}", what, parser)
    return "\n".join(sections)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way to what it has
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found |= action.choices
    return found


def _section(name: str, what: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{name}`\n\n{what[:1].upper()}{what[1:].rstrip('.')}.\n"
    rows = [row for action in parser._actions if (row := _row(action))]  # noqa: SLF001
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"
    for below, subparser in _subparsers(parser).items():
        yield from _section(f"{name} {below}", subparser.description or f"{name} {below}", subparser)


def _row(action: argparse.Action) -> str:
    """Return an option's line of the table, empty for what needs none."""
    if action.help in (None, argparse.SUPPRESS) or isinstance(action, argparse._HelpAction):  # noqa: SLF001
        return ""
    value = action.metavar or ("\\|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else value
    name = ", ".join(action.option_strings)
    written = f"{name} {value}".strip() if name else str(value)
    words = " ".join((action.help % {**vars(action), "prog": "tunnel-pool"}).split())
    return f"| `{written}` | {words.replace(str(user_state_path('tunnel-pool')), '~/.local/state/tunnel-pool')} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown())
