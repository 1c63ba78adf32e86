"""The book of feeds, articles and rules: their owner changes them, and the store keeps them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tunnel_pool.daemon.changes.moves import absolute
from tunnel_pool.daemon.changes.planning import refused
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds import matching
from tunnel_pool.daemon.feeds.model import MAX_FEEDS, MAX_NAME, MAX_RULES, Article, Feed, Kept, RawKept, Rule
from tunnel_pool.daemon.outside.client import WebClient
from tunnel_pool.daemon.outside.urls import OutsideError, Place, Way
from tunnel_pool.daemon.rules.hops import HopRules, check_labels
from tunnel_pool.daemon.storage.store import Store
from tunnel_pool.overlay.ground.pacing import Newest

MAX_ADDED = 10_000
ROOM_FOR_NUMBER = 4  # at the end of a name that another feed has, too
KEPT, DAMAGED = "feeds", "feeds:damaged"

logger = logging.getLogger(__name__)


class FeedBook:
    """Holds feeds and rules. A change is kept when its method returns; it raises RequestError and StoreError."""

    def __init__(self, store: Store, client: WebClient, hops: Callable[[], int]) -> None:
        """`hops`: how many hops new feeds are fetched over, where their owner does not say."""
        self._store = store
        self._client = client
        self._hops = hops
        self._changing = asyncio.Lock()
        self._last_number = 0
        self._feeds: dict[int, Feed] = {}
        self._rules: dict[str, Rule] = {}
        self._articles: dict[int, list[Article]] = {}  # the newest first
        self._added = Newest[str, None](MAX_ADDED)  # infohashes of torrents that rules have added

    async def load(self) -> None:
        """Raises StoreError. What can't be read of it is set aside."""
        content = await self._store.setting(KEPT) or b"{}"
        raw = _decoded(content, RawKept)
        feeds = [_decoded(each, Feed) for each in raw.feeds] if raw is not None else []
        rules = [_decoded(each, Rule) for each in raw.rules] if raw is not None else []
        if raw is None or None in feeds or None in rules:
            await self._store.set_setting(DAMAGED, content)
        self._rules = {rule.name: rule for rule in rules if rule is not None}
        for feed in filter(None, feeds):
            self._feeds[feed.number] = feed
            kept = await self._store.setting(_articles_of(feed))
            self._articles[feed.number] = (_decoded(kept, list[Article]) if kept is not None else None) or []
        for infohash in raw.added if raw is not None else ():
            self._added[infohash] = None
        # No number is given twice, whatever was lost: articles are kept by it.
        self._last_number = max([*self._feeds, raw.last_number if raw is not None else int(time.time())])

    # What there is

    @property
    def feeds(self) -> list[Feed]:
        return list(self._feeds.values())

    @property
    def rules(self) -> list[Rule]:
        return list(self._rules.values())

    def articles(self, feed: Feed) -> list[Article]:
        return self._articles.get(feed.number, [])

    def find(self, name: int | str) -> Feed | None:
        """Return the feed of this number, name or URL."""
        return next((feed for feed in self._feeds.values() if name in (feed.number, feed.name, feed.url)), None)

    def rule(self, name: str) -> Rule | None:
        return self._rules.get(name)

    def is_direct(self, feed: Feed) -> bool:
        """Return whether a feed is in its owner's own network, and asked without tunnels."""
        try:
            return self._client.place_of(feed.url).way is Way.DIRECT
        except OutsideError:
            return False

    # What follows a change; reading feeds is another's work (feeds.py)

    def refresh(self, feed: Feed) -> None:
        """Have a feed read now."""

    def look_through(self, feed: Feed) -> None:
        """Have the rules look at a feed's unread articles."""

    def forget(self, feed: Feed) -> None:
        """Hear that a feed is gone."""

    # What their owner changes

    async def add(self, url: str, name: str = "", hops: int | None = None, interval_min: int | None = None) -> Feed:
        """Add a feed, which is read at once; without a name, it is called by its host, and once read by its title."""
        place, name = self._checked(url), _checked_name(name) if name else ""
        async with self._changing:
            if len(self._feeds) >= MAX_FEEDS:
                raise RequestError(f"{MAX_FEEDS} feeds are the most")
            self._check_is_new(url, name)
            self._last_number += 1
            feed = Feed(
                number=self._last_number,
                url=url,
                name=name or self._free_name(place.url.host or "feed"),
                is_named=bool(name),
                hops=hops or self._hops(),
            )
            if interval_min is not None:
                feed.interval_min = interval_min
            await self._keep([*self._feeds.values(), feed], self._rules.values())
            self._feeds[feed.number] = feed
            self._articles[feed.number] = []
            self.refresh(feed)
        return feed

    async def change(self, feed: Feed, **fields: Any) -> None:
        """Change fields of a feed: `url`, `name`, `hops` and `interval_min`. It is read anew then."""
        if "url" in fields:
            self._checked(fields["url"])
        if "name" in fields:
            fields |= {"name": _checked_name(fields["name"]), "is_named": True}
        async with self._changing:
            if feed.number not in self._feeds:
                raise RequestError("the feed is gone")
            self._check_is_new(fields.get("url", ""), fields.get("name", ""), feed)
            changed = msgspec.structs.replace(feed, **fields)
            rules = [_renamed(rule, feed.url, changed.url) for rule in self._rules.values()]
            await self._keep([changed if each is feed else each for each in self._feeds.values()], rules)
            for name, value in fields.items():
                setattr(feed, name, value)
            self._rules = {rule.name: rule for rule in rules}
            self.refresh(feed)

    def name_by_title(self, feed: Feed) -> None:
        """Call a feed by its title, whatever that says, where its owner has not named it; the caller keeps it."""
        if feed.is_named or not feed.title:
            return
        feed.is_named = True  # by another title, it is the same feed
        with contextlib.suppress(RequestError):
            title = " ".join(feed.title.replace("\\", "/").split())[: MAX_NAME - ROOM_FOR_NUMBER]
            name = _checked_name(title)
            feed.name = ""
            feed.name = self._free_name(name)

    async def remove(self, feed: Feed) -> None:
        async with self._changing:
            await self._keep([each for each in self._feeds.values() if each is not feed], self._rules.values())
            self._feeds.pop(feed.number, None)
            self._articles.pop(feed.number, None)
            self.forget(feed)
            await self._store.remove_setting(_articles_of(feed))

    async def mark_read(self, feed: Feed, uid: str | None = None) -> None:
        """Have no rule look at an article any more; None: at all that there are."""
        for article in self.articles(feed):
            article.is_read |= uid in (None, article.uid)
        await self._keep_articles(feed)

    async def put_rule(self, rule: Rule, *, forgets: bool = False) -> None:
        """Add a rule, or replace the one of its name; unless it `forgets`, it keeps what that has taken.

        Unread articles are looked through at once.
        """
        _check(rule)
        async with self._changing:
            if rule.name not in self._rules and len(self._rules) >= MAX_RULES:
                raise RequestError(f"{MAX_RULES} rules are the most")
            if (before := self._rules.get(rule.name)) is not None and not forgets:
                rule.seen = list(dict.fromkeys([*before.seen, *rule.seen]))[-matching.MAX_SEEN :]
                rule.matched_s = before.matched_s
            rules = {**self._rules, rule.name: rule}
            await self._keep(self._feeds.values(), rules.values())
            self._rules = rules
        for feed in self._feeds.values():
            self.look_through(feed)

    async def remove_rule(self, name: str) -> None:
        async with self._changing:
            rules = {each: rule for each, rule in self._rules.items() if each != name}
            await self._keep(self._feeds.values(), rules.values())
            self._rules = rules

    async def rename_rule(self, before: str, name: str) -> None:
        async with self._changing:
            name = _checked_name(name)
            if before not in self._rules or name in self._rules:
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
        except OutsideError as error:
            raise RequestError(f"this feed can't be fetched: {error}") from None

    def _check_is_new(self, url: str, name: str, but: Feed | None = None) -> None:
        others = [feed for feed in self._feeds.values() if feed is not but]
        if any(feed.url == url for feed in others):
            raise RequestError("there is a feed of this URL already")
        if any(feed.name == name for feed in others):
            raise RequestError("there is a feed of this name already")

    def _free_name(self, name: str) -> str:
        names = {feed.name for feed in self._feeds.values()}
        return next(each for number in range(1, MAX_FEEDS + 2) if (each := _numbered(name, number)) not in names)

    async def _keep(self, feeds: Iterable[Feed], rules: Iterable[Rule]) -> None:
        kept = Kept(feeds=list(feeds), rules=list(rules), last_number=self._last_number, added=list(self._added))
        await self._store.set_setting(KEPT, msgspec.json.encode(kept))

    async def _keep_all(self) -> None:
        async with self._changing:
            await self._keep(self._feeds.values(), self._rules.values())

    async def _keep_articles(self, feed: Feed) -> None:
        if feed.number in self._feeds:
            await self._store.set_setting(_articles_of(feed), msgspec.json.encode(self.articles(feed)))


def _checked_name(name: str) -> str:
    """Return a name without blanks around it. Raises RequestError for one that can't be told from something else."""
    name = name.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise RequestError(f"a name has 1 to {MAX_NAME} characters, on one line")
    if name.isdigit() or name in (".", "..") or "\\" in name:
        raise RequestError("a name is no number, and has no backslash: feeds are in no folders")
    return name


def _check(rule: Rule) -> None:
    """Raises RequestError where a rule could add nothing, whatever it takes."""
    rule.name, rule.labels = _checked_name(rule.name), [word for each in rule.labels if (word := each.strip())]
    matching.check(rule)
    if rule.folder:
        absolute(rule.folder)
    with refused():
        check_labels(rule.labels)
        HopRules().hops(rule.hops, rule.labels, "/")


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} {number}"


def _renamed(rule: Rule, before: str, url: str) -> Rule:
    """Return a rule that looks at a feed's new URL where it looked at the one before."""
    if before == url or rule.feeds is None or before not in rule.feeds:
        return rule
    return msgspec.structs.replace(rule, feeds=[url if each == before else each for each in rule.feeds])


def _articles_of(feed: Feed) -> str:
    return f"articles:{feed.number}"


def _decoded(kept: bytes | msgspec.Raw, kind: Any) -> Any:
    """Return what was kept; None, and a line in the log, where it can't be read."""
    try:
        return msgspec.json.decode(kept, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        logger.error("What was kept of feeds can't be read: %s", error)
        return None
