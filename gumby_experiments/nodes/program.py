"""Shared parts of the programs with tunnels that run as nodes: options, the loop, one line when they fail."""

import argparse
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from tunnel_pool.cli.arguments import options
from tunnel_pool.system import runner
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.log import set_up_logging


def run_program(
    description: str | None, work: Callable[[argparse.Namespace], Coroutine[Any, Any, dict[str, Any]]]
) -> int:
    """Parse the arguments, run `work`, which may raise UserError, and return the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=0, help="that it and its children may use; 0: all")
    options.add_workers_option(parser, default="2")
    options.add_hops_option(parser)
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="error")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    set_up_logging(arguments.log_level)
    try:
        ended = runner.run(work(arguments))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if ended.result or ended.signal else 1
