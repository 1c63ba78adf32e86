"""Has a feed read in a process of its own."""

import asyncio
import contextlib
import os
import sys

import msgspec

from tunnel_pool.daemon.feeds.model import Article, Reading
from tunnel_pool.daemon.feeds.reader import CPU_S, TOO_MUCH
from tunnel_pool.daemon.feeds.reading import FeedError
from tunnel_pool.pool.command import only_for_children
from tunnel_pool.pool.program import feed_reader_command, own_environment

TIMEOUT_S = 3.0 * CPU_S  # on a busy machine it waits for a core
MAX_ANSWER_BYTES = 16 << 20
MAX_CHARSET = 40


async def read_apart(document: bytes, charset: str = "") -> tuple[str, list[Article]]:
    """Return a feed's own title, and its articles (`reading.py`). Raises FeedError.

    `charset` is the one that the feed's server named.
    """
    line = charset.encode("ascii", errors="replace").partition(b"\n")[0][:MAX_CHARSET] + b"\n"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await _answer_to(line + document)
        reading = msgspec.msgpack.decode(answer, type=Reading)
    except (TimeoutError, msgspec.MsgspecError):
        raise FeedError(TOO_MUCH) from None
    except OSError as error:
        raise FeedError(f"no process could be started to read it: {error.strerror}") from None
    if reading.error:
        raise FeedError(reading.error)
    return reading.title, reading.articles


async def _answer_to(document: bytes) -> bytes:
    """Return what the reading process writes; empty if it wrote too much or was ended. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *feed_reader_command(),
        env=only_for_children(own_environment()),
        cwd="/",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_ANSWER_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, 10)
        writing = asyncio.ensure_future(_write(process.stdin, document))
        answer = bytearray()
        while piece := await process.stdout.read(1 << 16):
            answer += piece
            if len(answer) > MAX_ANSWER_BYTES:
                return b""
        await writing
        await process.wait()
        return bytes(answer)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _write(stdin: asyncio.StreamWriter, document: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it has ended before it had all
        stdin.write(document)
        await stdin.drain()
        stdin.close()
