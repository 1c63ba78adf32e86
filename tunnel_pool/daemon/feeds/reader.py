"""A process that reads one feed: charset and document come by stdin, what it says goes to stdout (`apart.py`).

What a stranger has written is parsed here and not in the main process, where it would hold up all torrents. This
process has little memory, time and no sockets, and ends with its answer.
"""

import contextlib
import resource
import sys

import msgspec

from tunnel_pool.daemon.feeds.model import Reading
from tunnel_pool.daemon.feeds.reading import FeedError, read_feed
from tunnel_pool.sandbox import seccomp
from tunnel_pool.sandbox.kernel import IS_LINUX

MEMORY_BYTES = 320 << 20  # more than there is when the process begins
CPU_S = 10
TOO_MUCH = "it takes more memory or time to read than a feed may"


def main() -> None:
    _limit()
    try:
        charset = sys.stdin.buffer.readline().decode("ascii", errors="replace").strip()
        title, articles = read_feed(sys.stdin.buffer.read(), charset)
        reading = Reading(title=title, articles=articles)
    except FeedError as error:
        reading = Reading(error=str(error))
    except MemoryError:
        reading = Reading(error=TOO_MUCH)
    sys.stdout.buffer.write(msgspec.msgpack.encode(reading))


def _limit() -> None:
    with open("/proc/self/statm") if IS_LINUX else contextlib.nullcontext() as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize() if statm is not None else 0
    for kind, limit in (
        (resource.RLIMIT_AS, used + MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))
    if IS_LINUX:
        with contextlib.suppress(OSError):
            seccomp.confine(())


if __name__ == "__main__":
    main()
