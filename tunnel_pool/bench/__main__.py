"""python -m tunnel_pool.bench [download|streams]: ratios within one run, never absolutes across machines."""

import json
import sys

from tunnel_pool import runner
from tunnel_pool.bench import download, streams
from tunnel_pool.cli import options
from tunnel_pool.errors import UserError

COMMANDS = {"download": download, "streams": streams}


def main() -> int:
    """Run one benchmark; the exit codes are those of tunnel-pool."""
    parser = options.OneLineParser(prog="python -m tunnel_pool.bench", description=__doc__)
    parser.set_defaults(command="download", json=False, **download.DEFAULTS)
    commands = parser.add_subparsers(dest="command", metavar="BENCHMARK")
    for module in COMMANDS.values():
        module.add_parser(commands)
    arguments = parser.parse_args()
    arguments.command = arguments.command or "download"
    options.set_up_logging("error")
    try:
        ended = runner.run(COMMANDS[arguments.command].run(arguments))
    except UserError as error:
        print(f"{parser.prog} {arguments.command}: {error}", file=sys.stderr)
        return 1
    if ended.result is None:
        return ended.exit_code or 1
    print(json.dumps(ended.result) if arguments.json else COMMANDS[arguments.command].describe(ended.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
