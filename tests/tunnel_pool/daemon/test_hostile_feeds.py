"""Tests that a hostile feed costs the main process only the transfer of its bytes."""

import asyncio
import contextlib
import time

import psutil
import pytest

from tunnel_pool.daemon.feeds.apart import read_apart
from tunnel_pool.daemon.feeds.reader import TOO_MUCH
from tunnel_pool.daemon.feeds.reading import FeedError

MOST_BYTES = 8 << 20
BOUNDED = "more elements, attributes or levels"
HOSTILE = {
    "elements": (b"<rss>" + b"<a/>" * (MOST_BYTES // 4), BOUNDED),
    "levels": (b"<a>" * (MOST_BYTES // 3), BOUNDED),
    "attributes": (b"<rss " + b" ".join(b'a%d=""' % number for number in range(700_000)) + b"/>", BOUNDED),
    "names": (b"<rss>" + b"".join(b'<a xmlns:b%d="c"/>' % number for number in range(400_000)), BOUNDED),
    "comments": (b"<rss>" + b"<!---->" * (MOST_BYTES // 7) + b"</rss>", "neither RSS 2.0 nor Atom"),
    "nothing": (b"", "no XML"),
}


@contextlib.asynccontextmanager
async def longest_pause():
    """Yield a list that gets the longest time, in seconds, for which this process kept its loop from a turn.

    The time is that of the process' threads, so that a busy machine changes nothing.
    """
    longest = [0.0]

    async def tick():
        while True:
            before = time.process_time()
            await asyncio.sleep(0.005)
            longest[0] = max(longest[0], time.process_time() - before)

    ticking = asyncio.ensure_future(tick())
    try:
        yield longest
    finally:
        ticking.cancel()


async def test_a_feed_is_read_in_a_process_of_its_own():
    items = "".join(f"<item><title>a{number}</title><link>http://x/{number}</link></item>" for number in range(9))
    title, articles = await read_apart(f"<rss><channel><title>t</title>{items}</channel></rss>".encode())
    assert (title, [article.title for article in articles]) == ("t", [f"a{number}" for number in range(9)])
    assert not psutil.Process().children()


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_feed_holds_nothing_up_and_is_told_of_in_one_line(kind):
    document, why = HOSTILE[kind]
    before = psutil.Process().memory_info().rss
    async with longest_pause() as longest:
        with pytest.raises(FeedError, match=f"{why}|{TOO_MUCH}") as told:
            await read_apart(document)
    assert "\n" not in str(told.value)
    assert longest[0] < 0.1
    assert psutil.Process().memory_info().rss - before < 60 << 20
    assert not psutil.Process().children()
