"""The command line: parse, run, print, and an exit code.

0 done · 1 failed, one line says why · 2 wrong usage · 130 interrupted by Ctrl-C,
128 and the number by another signal; a node or seed that SIGTERM ends has ended well
"""

import argparse
import io
import json
import logging
import os
import signal
import sys
from types import ModuleType
from typing import Any

from tunnel_pool import __version__, runner
from tunnel_pool.cli import bench, demo, download, node, options, seed, seeder
from tunnel_pool.errors import UserError

EXIT_FAILED = UserError.exit_code
EXIT_INTERRUPTED = 130

COMMANDS: dict[str, ModuleType] = {"demo": demo, "download": download, "seed": seed, "node": node, "bench": bench}


def make_parser() -> argparse.ArgumentParser:
    parser = options.OneLineParser(
        prog="tunnel-pool", description="The anonymous BitTorrent daemon that uses every core."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS.values():
        module.add_parser(commands)
    seeder.add_parser(commands)
    return parser


def run(argv: list[str]) -> int:
    """Run one command; returns the exit code."""
    # A program that was started without them would fail where it prints.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = make_parser().parse_args(argv)
    if arguments.command == "seeder":
        return seeder.run(arguments)
    options.set_up_logging(arguments.log_level)
    try:
        ended = runner.run(arguments.run(arguments))
    except UserError as error:
        return _end(arguments, {"ok": False, "error": str(error)}, error.exit_code)
    except Exception as error:
        logging.getLogger(__name__).debug("The traceback of the failure", exc_info=True)
        why = f"unexpected {type(error).__name__}: {error}; --log-level debug shows where, please report it"
        return _end(arguments, {"ok": False, "error": why}, EXIT_FAILED)
    if ended.result is None:
        return _end(arguments, {"ok": False, "error": "interrupted"}, ended.exit_code or EXIT_FAILED)
    if ended.signal is signal.SIGINT:
        return _end(arguments, ended.result, EXIT_INTERRUPTED)
    return _end(arguments, ended.result, 0 if ended.result["ok"] else EXIT_FAILED)


def _end(arguments: argparse.Namespace, report: dict[str, Any], code: int) -> int:
    try:
        if "error" in report:
            print(f"tunnel-pool {arguments.command}: {report['error']}", file=sys.stderr, flush=True)
        elif not arguments.json:
            print(COMMANDS[arguments.command].describe(report), flush=True)
        if arguments.json:
            print(json.dumps(report), flush=True)
    except OSError:
        # Whoever read our output is gone, or its disk is full; the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code
