"""The command line: parse, run, print, and an exit code.

0 done · 1 failed, one line says why · 2 wrong usage · 130 interrupted by Ctrl-C,
128 and the number by another signal; a node or seed that SIGTERM ends has ended well
"""

import argparse
import importlib
import importlib.util
import io
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any

from tunnel_pool import __version__
from tunnel_pool.cli.arguments.parser import CommandParser, OneLineParser
from tunnel_pool.packet_engine import SLOW, is_built
from tunnel_pool.sandbox import lockdown
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.log import set_up_logging

EXIT_FAILED = UserError.exit_code
EXIT_INTERRUPTED = 130

GROUPS = {
    "to download and seed": {
        "demo": "a private swarm on loopback, and a download through it",
        "download": "download torrents anonymously",
        "seed": "seed files hidden, until told to stop",
        "daemon": "download and seed, driven by Transmission's clients, until told to stop",
        "config": "check and show the daemon's configuration",
    },
    "to drive a running daemon": {
        "top": "watch a daemon at work",
        "status": "list a daemon's torrents",
        "info": "show all that is known of torrents",
        "files": "show files of torrents, and choose among them",
        "peers": "show peers of torrents",
        "add": "add torrents to a daemon",
        "import": "take over the torrents of another program",
        "remove": "remove torrents from a daemon",
        "pause": "stop torrents of a daemon",
        "resume": "start torrents of a daemon",
        "set": "change hop counts, labels and limits of torrents",
        "move": "move torrents to another folder",
        "verify": "check the files of torrents",
        "feeds": "lists of torrents on the web (RSS) that a daemon reads",
        "rules": "which torrents of its feeds a daemon adds",
    },
    "to serve the network": {
        "node": "relay, and exit where asked, until told to stop",
        "private-network": "write the configuration of a network of your own",
    },
    "to measure": {
        "bench": "measure ours and its peers side by side",
        "experiment": "repeat experiments, compare their results",
        "cut": "find where the data flow asks to be cut",
    },
}
COMMANDS = {name: what for commands in GROUPS.values() for name, what in commands.items()}
# Those that are not in a module of their name.
MODULES = {
    **dict.fromkeys(("status", "add", "remove", "pause", "resume"), "remote.remote"),
    **dict.fromkeys(("set", "move", "verify"), "remote.edits"),
    **dict.fromkeys(("info", "files", "peers"), "remote.details"),
    **dict.fromkeys(("feeds", "rules"), "remote.feeds"),
    "import": "remote.importing",
    "top": "remote.top",
    "private-network": "private_network",
}
# What a program that embeds the pool need not have installed (setup.py).
OF_THE_COMMAND = {
    "aiohttp",
    "aiohttp_socks",
    "defusedxml",
    "libtorrent",
    "maxminddb",
    "msgspec",
    "platformdirs",
    "prometheus_client",
    "regex",
    "rich",
    "twisted",
}
SEEDER = "seeder"  # started by the demo, not by people


def module_of(command: str) -> Any:
    """Import the module of the command that runs, and no other: what all need takes a second."""
    if importlib.util.find_spec("twisted") is None:  # it is imported when the command runs
        raise ModuleNotFoundError(name="twisted")
    return importlib.import_module(f"tunnel_pool.cli.{MODULES.get(command, command)}")


def _grouped() -> str:
    """Return what there is to do, by who does it."""
    groups = (
        "\n".join([f"{title}:", *(f"  {name:17}{what}" for name, what in commands.items())])
        for title, commands in GROUPS.items()
    )
    return "\n\n".join(groups) + "\n\n`tunnel-pool COMMAND --help` says more."


def make_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser for this command line, which knows the options of its command alone."""
    parser = OneLineParser(
        prog="tunnel-pool",
        description="The anonymous BitTorrent daemon that uses every core.",
        epilog=_grouped(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engine = "its packet engine is the native one" if is_built() else SLOW[:1].lower() + SLOW[1:]
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}; {engine}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser, help="One of those below."
    )
    parsers = {name: commands.add_parser(name) for name in COMMANDS}
    parsers[SEEDER] = commands.add_parser(SEEDER)
    asked = next((word for word in argv if not word.startswith("-")), "")
    if asked in parsers:
        module_of(asked).add_options(parsers[asked])
    return parser


def run(argv: list[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        return _run(argv)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in OF_THE_COMMAND:
            raise
        print(f"tunnel-pool: {error.name} is not installed: pip install 'tunnel-pool[cli]'", file=sys.stderr)
        return EXIT_FAILED


def _run(argv: list[str]) -> int:
    # A program that was started without stdout or stderr would fail when it prints.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = make_parser(argv)
    arguments = parser.parse_args(argv)
    command = module_of(arguments.command)
    if arguments.command == SEEDER:
        return int(command.run(arguments))
    from tunnel_pool.system import runner  # it imports Twisted, too

    try:
        if hasattr(command, "with_config"):
            arguments = command.with_config(
                arguments, lambda more: parser.parse_args([argv[0], *more, *argv[1:]]), argv[1:]
            )
        if getattr(arguments, "lockdown", "off") != "off":
            lockdown.prepare()  # this has to come before there are threads
        set_up_logging(arguments.log_level, getattr(arguments, "log_file", None))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would show keys
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
            print(module_of(arguments.command).describe(report), flush=True)
        if arguments.json:
            print(json.dumps(report), flush=True)
    except OSError:
        # Whoever read our output is gone, or its disk is full; the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code
