"""The feeds of a daemon: read in turn, and looked through for what the rules want."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from operator import itemgetter
from typing import Any

import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds import matching
from tunnel_pool.daemon.feeds.adding import parameters_of, wish_of
from tunnel_pool.daemon.feeds.apart import read_apart
from tunnel_pool.daemon.feeds.book import FeedBook
from tunnel_pool.daemon.feeds.model import Article, Feed, Rule
from tunnel_pool.daemon.feeds.reading import MAX_ARTICLES, FeedError
from tunnel_pool.daemon.feeds.turns import Turns
from tunnel_pool.daemon.outside.client import WebClient, WebSession
from tunnel_pool.daemon.outside.urls import NotAllowedError, NotNowError, OutsideError, Place, Way
from tunnel_pool.daemon.storage.store import Store, StoreError

MAX_FEED_BYTES = 8 << 20
MAX_KEPT = 2 * MAX_ARTICLES  # articles of a feed, those that it names no longer included
TICK_S = 1.0
WITHIN_S = 600.0  # a feed, with the torrents of its articles, is left alone then until its next turn
MOST_FAILURES = 10  # torrents of a feed in a row that can't be had, after which the others wait for its next turn
AGAIN_AFTER_S = (300.0, 1800.0, 7200.0)  # when a torrent that can't be had is asked for again, at the most so often
FIRST_WITHIN_S = 60.0  # feeds that are due at the start come in this time, one by one
RETRY_MIN = 5  # after a failure, and twice as long after each more, up to the feed's own interval
JITTER = 0.1
NEVER = float("inf")

logger = logging.getLogger(__name__)


class Feeds(FeedBook):
    """Reads the feeds that there are, and has torrents added; `start` it, `close` it."""

    def __init__(self, store: Store, client: WebClient, changes: Changes, hops: Callable[[], int]) -> None:
        super().__init__(store, client, hops)
        self._reading = asyncio.Lock()  # one feed at a time, as each takes a core
        self._changes = changes
        self._due_s: dict[int, float] = {}  # on the monotonic clock
        self._put_off: set[int] = set()  # feeds whose articles are to be looked through
        self._at_work: dict[int, asyncio.Task[None]] = {}
        self._turns = Turns()
        self._something_is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises StoreError."""
        await self.load()
        for feed in self._feeds.values():
            interval_s = _interval_s(feed)
            since_s = max(0.0, time.time() - feed.asked_s)  # the clock may be set wrong
            first_s = random.uniform(0, FIRST_WITHIN_S)
            self._due_s[feed.number] = time.monotonic() + max(first_s, interval_s - since_s)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        tasks = [*self._at_work.values(), *filter(None, [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_being_read(self, feed: Feed) -> bool:
        return feed.number in self._at_work

    async def wanted_by(self, rule: Rule) -> dict[str, list[str]]:
        """Return the titles of the articles that a rule takes, or would if it were on, by the name of their feed.

        Those that are read are among them.
        """
        rule, found = msgspec.structs.replace(rule, enabled=True), {}
        for feed in self.feeds:
            wanted = await asyncio.to_thread(_wanted, [rule], list(self.articles(feed)), feed.url)
            found[feed.name] = [article.title for article, _ in wanted]
        return {name: titles for name, titles in found.items() if titles}

    def refresh(self, feed: Feed) -> None:
        """Have a feed read now, and the torrents tried again that could not be had."""
        if feed.number in self._feeds:
            for article in self.articles(feed):
                if article.problem:
                    article.tries, article.again_s, article.is_read = 0, 0.0, False
            self._due_s[feed.number] = time.monotonic()
            self._something_is_due.set()

    def look_through(self, feed: Feed) -> None:
        self._put_off.add(feed.number)
        self._something_is_due.set()

    def forget(self, feed: Feed) -> None:
        self._due_s.pop(feed.number, None)
        self._put_off.discard(feed.number)
        if (task := self._at_work.get(feed.number)) is not None:
            task.cancel()

    # Taking turns

    async def _run(self) -> None:
        while True:
            self._begin_what_is_due(time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._something_is_due.wait()
            self._something_is_due.clear()

    def _begin_what_is_due(self, now_s: float) -> None:
        due = [number for number, due_s in sorted(self._due_s.items(), key=itemgetter(1)) if due_s <= now_s]
        for number in (*due, *sorted(self._put_off)):
            feed = self._feeds.get(number)
            if feed is None:
                self._put_off.discard(number)
            elif number not in self._at_work and self._turns.may_begin(number):
                self._put_off.discard(number)
                self._begin(feed, self._read(feed) if number in due else self._take_what_is_known(feed))

    def _begin(self, feed: Feed, work: Coroutine[object, object, None]) -> None:
        self._turns.begins(feed.number, time.monotonic())
        task = self._at_work[feed.number] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._end(feed))

    def _end(self, feed: Feed) -> None:
        del self._at_work[feed.number]
        self._turns.ends(feed.number, time.monotonic())
        self._something_is_due.set()

    async def _read(self, feed: Feed) -> None:
        feed.asked_s, self._due_s[feed.number] = time.time(), NEVER
        try:
            async with asyncio.timeout(WITHIN_S), self._client.session(feed.hops) as session:
                await self._read_over(feed, session)
        except TimeoutError:
            self._failed(feed, f"it took longer than {WITHIN_S / 60:.0f} minutes")
        except (FeedError, OutsideError) as error:
            self._failed(feed, str(error))
        except StoreError as error:
            self._failed(feed, f"what it says could not be saved: {error}")
        except Exception as error:
            logger.exception("A feed could not be read")
            self._failed(feed, f"something went wrong, and is in the log ({type(error).__name__})")
        finally:
            if self._due_s.get(feed.number) == NEVER:  # otherwise it was removed, or is to be read again
                self._due_s[feed.number] = time.monotonic() + _interval_s(feed)
        with suppress(StoreError):
            await self._keep_all()

    async def _read_over(self, feed: Feed, session: WebSession) -> None:
        """Raises FeedError, OutsideError and StoreError."""
        fetched, place = await session.fetch(self._client.place_of(feed.url), MAX_FEED_BYTES)
        async with self._reading:
            feed.title, articles = await read_apart(fetched.body, fetched.charset)
        feed.problem, feed.failures, feed.read_s = "", 0, time.time()
        self.name_by_title(feed)
        self._articles[feed.number] = merged(self.articles(feed), articles, place, time.time())
        await self._keep_articles(feed)
        await self._keep_all()
        await self._take_wanted(feed, session)

    @staticmethod
    def _failed(feed: Feed, why: str) -> None:
        feed.failures += 1
        if feed.problem != why:
            logger.warning("Feed %d was not read: %s", feed.number, why)
        feed.problem = why

    # Taking what the rules want

    async def _take_what_is_known(self, feed: Feed) -> None:
        """Look through the articles that were read before."""
        try:
            async with asyncio.timeout(WITHIN_S), self._client.session(feed.hops) as session:
                await self._take_wanted(feed, session)
        except (StoreError, TimeoutError) as error:
            why = error or "it took too long"
            logger.warning("What rules want of feed %d was not added: %s", feed.number, why)

    async def _take_wanted(self, feed: Feed, session: WebSession) -> None:
        """Add what the rules want of a feed's unread articles, as long as it can be had. Raises StoreError."""
        rules = sorted(self._rules.values(), key=lambda rule: rule.priority)
        now_s = time.time()
        unread = [each for each in self.articles(feed) if not each.is_read and each.again_s <= now_s]
        failures = 0
        for article, rule in await asyncio.to_thread(_wanted, rules, unread, feed.url):
            try:
                parameters = await parameters_of(article, self._client, session)
                await _finished(self._add(feed, article, rule.name, parameters))
                failures = 0
            except NotNowError as error:
                article.problem = str(error)
                break
            except (NotAllowedError, RequestError) as error:
                self._not_added(feed, article, str(error))
            except OutsideError as error:
                failures += 1
                self._not_added(feed, article, str(error))
            except StoreError:
                raise
            except Exception as error:
                logger.exception("A torrent of a feed could not be added")
                why = f"something went wrong, and is in the log ({type(error).__name__})"
                self._not_added(feed, article, why)
            if article.problem:  # otherwise it is kept with what the rule has taken
                await self._keep_articles(feed)
            if failures >= MOST_FAILURES:
                break

    @staticmethod
    def _not_added(feed: Feed, article: Article, why: str) -> None:
        article.torrent_url, article.magnet = article.magnet or article.torrent_url, ""
        article.is_read = article.tries >= len(AGAIN_AFTER_S)
        if article.is_read:
            article.problem = f"given up: {why}"
        else:
            article.problem, article.again_s = why, time.time() + AGAIN_AFTER_S[article.tries]
            article.tries += 1
        then = "and is given up" if article.is_read else "and is tried again later"
        logger.warning(
            "A torrent of feed %d was not added, %s; `tunnel-pool feeds articles` says why", feed.number, then
        )

    async def _add(self, feed: Feed, article: Article, rule_name: str, parameters: Any) -> None:
        """Add a torrent as the rule of this name says by now, and keep that it was added.

        Raises RequestError and StoreError.
        """
        async with self._changing:
            rule, now_s = self._rules.get(rule_name), time.time()
            if rule is None or article.is_read or feed.number not in self._feeds:
                return
            if not matching.may_take(rule, article):
                return  # it has taken another one of the same episode meanwhile
            infohash = str(parameters.info_hashes.get_best())
            if infohash not in self._added:  # otherwise under another name, and its owner may have removed it
                await self._changes.add(parameters, wish_of(rule))
                article.added_by, self._added[infohash] = rule.name, None
                matching.note_taken(rule, article, now_s)
            article.problem, article.is_read = "", True
            await self._keep(self._feeds.values(), self._rules.values())
        await self._keep_articles(feed)
        if article.added_by:
            logger.info("A torrent of feed %d was added", feed.number)


async def _finished(change: Coroutine[object, object, None]) -> None:
    """Wait for a change, which is finished once it has begun, even if this is cancelled."""
    changing = asyncio.ensure_future(change)
    try:
        await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait([changing])
        raise


def _wanted(rules: list[Rule], articles: list[Article], feed_url: str) -> list[tuple[Article, Rule]]:
    """Return what is to be added, and by which rule; a rule that takes too long is passed over from there on."""
    wanted = []
    slow: set[str] = set()
    for article in articles:
        for rule in rules:
            try:
                if rule.name not in slow and matching.takes(rule, article, feed_url):
                    wanted.append((article, rule))
                    break
            except matching.TooSlowError:
                logger.warning("A rule's pattern takes too long on a title, and is passed over; it has to be simpler")
                slow.add(rule.name)
    return wanted


def merged(known: list[Article], found: list[Article], place: Place, now_s: float) -> list[Article]:
    """Return the articles that a feed at this place names now, and then those of before.

    Of one that is known and still unread, what the feed says of it now holds.
    """
    by_uid = {article.uid: article for article in known}
    newest = []
    for article in found:
        before = by_uid.get(article.uid)
        if before is not None and before.is_read:
            newest.append(before)
            continue
        article.source, article.is_direct = str(place.url), place.way is Way.DIRECT
        if before is not None:
            for name in ("published_s", "problem", "tries", "again_s"):
                setattr(article, name, getattr(before, name))
        article.published_s = article.published_s or now_s
        newest.append(article)
    named = {article.uid for article in found}
    return [*newest, *(article for article in known if article.uid not in named)][:MAX_KEPT]


def _interval_s(feed: Feed) -> float:
    """Return how long it is from one reading to the next, a little different each time."""
    usual_s = feed.interval_min * 60.0
    retry_s = RETRY_MIN * 60.0 * 2 ** min(feed.failures - 1, 20)
    wait_s = min(retry_s, usual_s) if feed.failures else usual_s
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)
