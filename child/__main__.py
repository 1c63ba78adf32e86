"""The child's entry: ignore Ctrl-C, watch the exit stream, serve the calls."""

import signal

# The main process decides what these mean, and asks on the exit stream.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_number, signal.SIG_IGN)

import asyncio  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from tunnel_pool.child.confinement import confine_process  # noqa: E402
from tunnel_pool.child.exit_watch import ExitWatch  # noqa: E402
from tunnel_pool.child.host import ChildHost  # noqa: E402
from tunnel_pool.rpc.lifeline import die_with_parent  # noqa: E402


async def run() -> None:
    """Serve until the main process asks to end, or can't be talked to."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def stop(why: str) -> None:
        logging.getLogger(__name__).debug("Ending: %s", why)
        asked.set()

    host = ChildHost(on_lost=stop)
    watch = ExitWatch(loop, stop)
    watch.start()
    await host.open()
    await asked.wait()
    await host.close()
    watch.ended()


def main() -> None:
    die_with_parent(os.getppid())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if missing := confine_process():
        logging.getLogger(__name__).info("The kernel does not confine this worker by %s", ", ".join(missing))
    asyncio.run(run())


if __name__ == "__main__":
    main()
