"""The executable: a command, or, with the switch, a child of a running pool.

A child must stay small and know nothing of the main process, so the switches
run the package `child` before anything else of tunnel_pool is imported.
"""

import os
import signal
import sys

from tunnel_pool.pool import switches
from tunnel_pool.rpc.lifeline import close_other_descriptors, die_with_parent


def be(module: str) -> None:
    """Run what a switch asked for, until the main process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    die_with_parent(os.getppid())  # before the imports, which take a while
    close_other_descriptors()
    import runpy

    runpy.run_module(module, run_name="__main__", alter_sys=False)


def main() -> int:
    """Run the command, or the module that this process was started for; return the exit code."""
    if module := switches.own_module_for("".join(sys.argv[1:2])):
        be(module)
        return 0
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the imports last: end, without a traceback
    from tunnel_pool.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
