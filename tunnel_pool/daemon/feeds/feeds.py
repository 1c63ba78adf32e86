"""The feeds of a daemon: kept in the store, read in turn, and looked through for what the rules want."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from operator import itemgetter
from typing import Any

import msgspec

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds import matching
from tunnel_pool.daemon.feeds.adding import Adding
from tunnel_pool.daemon.feeds.client import FeedClient, FeedSession
from tunnel_pool.daemon.feeds.model import MAX_FEEDS, MAX_NAME, MAX_RULES, Article, Feed, Kept, Rule
from tunnel_pool.daemon.feeds.reading import MAX_ARTICLES, read_feed
from tunnel_pool.daemon.feeds.urls import FeedError, Place
from tunnel_pool.daemon.storage.store import Store, StoreError
from tunnel_pool.daemon.torrents.changes import Changes

MAX_FEED_BYTES = 8 << 20
MAX_KEPT = 2 * MAX_ARTICLES  # articles of a feed, those that it names no longer included
TICK_S = 1.0
AT_A_TIME = 2  # feeds that are read at a time: each has circuits of its own
FIRST_WITHIN_S = 60.0  # feeds that are due at the start come in this time, one by one
RETRY_MIN = 5  # after a failure, and twice as long after each more, up to the feed's own interval
JITTER = 0.1
NEVER = float("inf")
KEPT = "feeds"

logger = logging.getLogger(__name__)


class Feeds:
    """Reads feeds and has torrents added; `start` it, `close` it. Changes raise RequestError and StoreError."""

    def __init__(self, store: Store, client: FeedClient, changes: Changes, hops: Callable[[], int]) -> None:
        """`hops`: how many hops new feeds are fetched over, where their owner does not say."""
        self._store = store
        self._client = client
        self._adding = Adding(client, changes)
        self._hops = hops
        self._changing = asyncio.Lock()
        self._last_number = 0
        self._feeds: dict[int, Feed] = {}
        self._rules: dict[str, Rule] = {}
        self._articles: dict[int, list[Article]] = {}  # the newest first
        self._due_s: dict[int, float] = {}  # on the monotonic clock
        self._reading: dict[int, asyncio.Task[None]] = {}
        self._put_off: set[int] = set()  # feeds to look through when they were read
        self._something_is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises StoreError."""
        kept = _decoded(await self._store.setting(KEPT), Kept) or Kept()
        self._last_number = kept.last_number
        self._rules = {rule.name: rule for rule in kept.rules}
        for feed in kept.feeds:
            self._feeds[feed.number] = feed
            self._articles[feed.number] = _decoded(await self._store.setting(_articles_of(feed)), list[Article]) or []
            wait_s = feed.asked_s + _interval_s(feed) - time.time()
            self._due_s[feed.number] = time.monotonic() + max(wait_s, random.uniform(0, FIRST_WITHIN_S))
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        tasks = [*self._reading.values(), *filter(None, [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What there is

    @property
    def feeds(self) -> list[Feed]:
        return list(self._feeds.values())

    @property
    def rules(self) -> list[Rule]:
        return list(self._rules.values())

    def articles(self, feed: Feed) -> list[Article]:
        return self._articles.get(feed.number, [])

    def is_being_read(self, feed: Feed) -> bool:
        return feed.number in self._reading

    def find(self, name: int | str) -> Feed | None:
        """Return the feed of this number, name or URL."""
        return next((feed for feed in self._feeds.values() if name in (feed.number, feed.name, feed.url)), None)

    def has_rule(self, name: str) -> bool:
        return name in self._rules

    def taken_by(self, name: str) -> dict[str, Any]:
        """Return the fields of a rule that say what it has taken; none, if there is no such rule."""
        rule = self._rules.get(name)
        return {"seen": rule.seen, "matched_s": rule.matched_s} if rule is not None else {}

    async def wanted_by(self, rule: Rule) -> dict[str, list[str]]:
        """Return the titles of the articles that a rule takes, read ones too, by the name of their feed."""
        found = {}
        for feed in self.feeds:
            wanted = await asyncio.to_thread(_wanted, [rule], list(self.articles(feed)), feed.url)
            found[feed.name] = [article.title for article, _ in wanted]
        return {name: titles for name, titles in found.items() if titles}

    # What their owner changes

    async def add(self, url: str, name: str = "", hops: int | None = None, interval_min: int | None = None) -> Feed:
        """Add a feed, which is read at once; without a name, it is called by its host."""
        place = self._checked(url)
        async with self._changing:
            if len(self._feeds) >= MAX_FEEDS:
                raise RequestError(f"{MAX_FEEDS} feeds are the most")
            self._check_is_new(url, name)
            self._last_number += 1
            feed = Feed(
                number=self._last_number,
                url=url,
                name=name or self._free_name(place.url.host or "feed"),
                hops=hops or max(1, self._hops()),
            )
            if interval_min is not None:
                feed.interval_min = interval_min
            await self._keep([*self._feeds.values(), feed], self._rules.values())
            self._feeds[feed.number] = feed
            self._articles[feed.number] = []
            self.refresh(feed)
        return feed

    async def change(self, feed: Feed, **fields: Any) -> None:
        """Change fields of a feed: `url`, `name`, `hops` and `interval_min`."""
        if "url" in fields:
            self._checked(fields["url"])
        async with self._changing:
            self._check_is_new(fields.get("url", ""), fields.get("name", ""), feed)
            before = feed.url
            changed = msgspec.structs.replace(feed, **fields)
            rules = [_renamed(rule, before, changed.url) for rule in self._rules.values()]
            await self._keep([changed if each is feed else each for each in self._feeds.values()], rules)
            for name, value in fields.items():
                setattr(feed, name, value)
            self._rules = {rule.name: rule for rule in rules}
            self.refresh(feed)

    async def remove(self, feed: Feed) -> None:
        async with self._changing:
            await self._keep([each for each in self._feeds.values() if each is not feed], self._rules.values())
            self._feeds.pop(feed.number, None)
            self._articles.pop(feed.number, None)
            self._due_s.pop(feed.number, None)
            self._put_off.discard(feed.number)
            if (reading := self._reading.get(feed.number)) is not None:
                reading.cancel()
            await self._store.remove_setting(_articles_of(feed))

    def refresh(self, feed: Feed) -> None:
        """Have a feed read now."""
        self._due_s[feed.number] = time.monotonic()
        self._something_is_due.set()

    async def mark_read(self, feed: Feed, uid: str | None = None) -> None:
        """Have no rule look at an article any more; None: at all that there are."""
        for article in self.articles(feed):
            article.is_read |= uid in (None, article.uid)
        await self._keep_articles(feed)

    async def put_rule(self, rule: Rule) -> None:
        """Add a rule, or replace the one of its name; unread articles are looked through at once."""
        matching.check(rule)
        async with self._changing:
            if rule.name not in self._rules and len(self._rules) >= MAX_RULES:
                raise RequestError(f"{MAX_RULES} rules are the most")
            rules = {**self._rules, rule.name: rule}
            await self._keep(self._feeds.values(), rules.values())
            self._rules = rules
        for feed in self._feeds.values():
            self._look_through(feed)

    async def remove_rule(self, name: str) -> None:
        async with self._changing:
            rules = {each: rule for each, rule in self._rules.items() if each != name}
            await self._keep(self._feeds.values(), rules.values())
            self._rules = rules

    async def rename_rule(self, before: str, name: str) -> None:
        async with self._changing:
            if before not in self._rules or name in self._rules or not 0 < len(name) <= MAX_NAME:
                raise RequestError("there is no such rule, or there is one of the new name")
            rules = [
                msgspec.structs.replace(rule, name=name) if rule.name == before else rule
                for rule in self._rules.values()
            ]
            await self._keep(self._feeds.values(), rules)
            self._rules = {rule.name: rule for rule in rules}

    def _checked(self, url: str) -> Place:
        try:
            return self._client.place_of(url)
        except FeedError as error:
            raise RequestError(f"this feed can't be fetched: {error}") from None

    def _check_is_new(self, url: str, name: str, but: Feed | None = None) -> None:
        others = [feed for feed in self._feeds.values() if feed is not but]
        if any(feed.url == url for feed in others):
            raise RequestError("there is a feed of this URL already")
        if any(feed.name == name for feed in others):
            raise RequestError("there is a feed of this name already")
        if len(name) > MAX_NAME:
            raise RequestError(f"the name is longer than {MAX_NAME} characters")

    def _free_name(self, name: str) -> str:
        names = {feed.name for feed in self._feeds.values()}
        return next(each for number in range(1, MAX_FEEDS + 2) if (each := _numbered(name, number)) not in names)

    async def _keep(self, feeds: Iterable[Feed], rules: Iterable[Rule]) -> None:
        kept = Kept(feeds=list(feeds), rules=list(rules), last_number=self._last_number)
        await self._store.set_setting(KEPT, msgspec.json.encode(kept))

    async def _keep_all(self) -> None:
        async with self._changing:
            await self._keep(self._feeds.values(), self._rules.values())

    async def _keep_articles(self, feed: Feed) -> None:
        if feed.number in self._feeds:
            await self._store.set_setting(_articles_of(feed), msgspec.json.encode(self.articles(feed)))

    # Reading

    async def _run(self) -> None:
        while True:
            now_s = time.monotonic()
            for number, due_s in sorted(self._due_s.items(), key=itemgetter(1)):
                if due_s <= now_s and len(self._reading) < AT_A_TIME and number not in self._reading:
                    self._spawn(self._feeds[number], self._read(self._feeds[number]))
            for number in self._put_off - self._reading.keys():
                self._look_through(self._feeds[number])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._something_is_due.wait()
            self._something_is_due.clear()

    def _spawn(self, feed: Feed, work: Coroutine[Any, Any, None]) -> None:
        task = self._reading[feed.number] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._was_read(feed))

    def _was_read(self, feed: Feed) -> None:
        self._reading.pop(feed.number, None)
        self._something_is_due.set()

    def _look_through(self, feed: Feed) -> None:
        """Have the rules look at a feed's unread articles, now or once it was read."""
        if all(article.is_read for article in self.articles(feed)):
            return
        if feed.number in self._reading:
            self._put_off.add(feed.number)
        else:
            self._put_off.discard(feed.number)
            self._spawn(feed, self._take_wanted_alone(feed))

    async def _read(self, feed: Feed) -> None:
        feed.asked_s, self._due_s[feed.number] = time.time(), NEVER
        try:
            async with self._client.session(feed.hops) as session:
                fetched, place = await session.fetch(self._client.place_of(feed.url), MAX_FEED_BYTES)
                feed.title, articles = await asyncio.to_thread(read_feed, fetched.body)
                feed.problem, feed.failures, feed.read_s = "", 0, time.time()
                self._articles[feed.number] = merged(self.articles(feed), articles, time.time())
                await self._take_wanted(feed, place, session)
        except FeedError as error:
            self._failed(feed, str(error))
        except StoreError as error:
            self._failed(feed, f"what it says could not be saved: {error}")
        except Exception as error:
            logger.exception("A feed could not be read")
            self._failed(feed, f"something went wrong, and is in the log ({type(error).__name__})")
        finally:
            if self._due_s.get(feed.number) == NEVER:  # otherwise it was removed, or is to be read again
                self._due_s[feed.number] = time.monotonic() + _interval_s(feed)
        with contextlib.suppress(StoreError):
            await self._keep_all()

    @staticmethod
    def _failed(feed: Feed, why: str) -> None:
        feed.failures += 1
        if feed.problem != why:
            logger.warning("The feed %s was not read: %s", feed.name, why)
        feed.problem = why

    async def _take_wanted_alone(self, feed: Feed) -> None:
        """Look through the articles that are known, and were fetched before."""
        try:
            async with self._client.session(feed.hops) as session:
                await self._take_wanted(feed, self._client.place_of(feed.url), session)
        except (FeedError, StoreError) as error:
            logger.warning("What a new rule wants of the feed %s was not added: %s", feed.name, error)

    async def _take_wanted(self, feed: Feed, place: Place, session: FeedSession) -> None:
        """Add what the rules want of a feed's unread articles. Raises StoreError."""
        rules = sorted(self._rules.values(), key=lambda rule: rule.priority)
        unread = [article for article in self.articles(feed) if not article.is_read]
        wanted = await asyncio.to_thread(_wanted, rules, unread, feed.url)
        for article, rule in wanted:
            if self._rules.get(rule.name) is rule:  # otherwise it was changed meanwhile
                await self._adding.add(article, rule, place, session)
        await self._keep_articles(feed)
        if wanted:
            await self._keep_all()


def _wanted(rules: list[Rule], articles: list[Article], feed_url: str) -> list[tuple[Article, Rule]]:
    """Return what is to be added, and by which rule; a rule that takes too long is passed over from there on."""
    wanted, now_s = [], time.time()
    slow: set[str] = set()
    for article in articles:
        for rule in rules:
            try:
                if rule.name not in slow and matching.takes(rule, article, feed_url, now_s):
                    wanted.append((article, rule))
                    break
            except matching.TooSlowError:
                logger.warning("The pattern of the rule %s takes too long on a title: simplify it", rule.name)
                slow.add(rule.name)
    return wanted


def merged(known: list[Article], found: list[Article], now_s: float) -> list[Article]:
    """Return the articles that a feed names now, as they are known where they are, and then those of before."""
    by_uid = {article.uid: article for article in known}
    for article in found:
        article.published_s = article.published_s or now_s
    newest = [by_uid.get(article.uid, article) for article in found]
    named = {article.uid for article in found}
    return [*newest, *(article for article in known if article.uid not in named)][:MAX_KEPT]


def _interval_s(feed: Feed) -> float:
    """Return how long it is from one reading to the next, a little different each time."""
    usual_s = feed.interval_min * 60.0
    retry_s = RETRY_MIN * 60.0 * 2 ** min(feed.failures - 1, 20)
    wait_s = min(retry_s, usual_s) if feed.failures else usual_s
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} {number}"


def _renamed(rule: Rule, before: str, url: str) -> Rule:
    """Return a rule that looks at a feed's new URL where it looked at the one before."""
    if before == url or rule.feeds is None or before not in rule.feeds:
        return rule
    return msgspec.structs.replace(rule, feeds=[url if each == before else each for each in rule.feeds])


def _articles_of(feed: Feed) -> str:
    return f"articles:{feed.number}"


def _decoded(kept: bytes | None, kind: Any) -> Any:
    """Return what was kept; None, and a line in the log, where it can't be read."""
    if kept is None:
        return None
    try:
        return msgspec.json.decode(kept, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        logger.error("What was kept of feeds can't be read, and is as at the first start: %s", error)
        return None
