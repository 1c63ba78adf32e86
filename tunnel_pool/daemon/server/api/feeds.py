"""The API's operations on feeds and on the rules by which their torrents are added."""

from typing import Annotated

import msgspec

from tunnel_pool.daemon.errors import NotFoundError, RequestError
from tunnel_pool.daemon.feeds import model as kept
from tunnel_pool.daemon.feeds.feeds import Feeds
from tunnel_pool.daemon.server.api.model import Hops, Labels, Model, Text
from tunnel_pool.daemon.server.api.operations import Call, Operation

Url = Annotated[str, msgspec.Meta(max_length=2048)]

FeedNumbers = Annotated[list[int], msgspec.Meta(max_length=kept.MAX_FEEDS, description="null: all feeds")]


class Feed(Model):
    number: int
    url: str
    name: str
    title: Annotated[str, msgspec.Meta(description="by which it calls itself")]
    hops: Annotated[int, msgspec.Meta(description="of the circuits by which it is fetched; 0: in its owner's network")]
    interval_min: int
    articles: int
    unread: Annotated[int, msgspec.Meta(description="articles that rules still look at")]
    is_being_read: bool
    read_s: Annotated[float | None, msgspec.Meta(description="when it last answered")]
    problem: Annotated[str, msgspec.Meta(description="why it can't be read; empty once it was")]


class NewFeed(Model):
    url: Url
    name: Annotated[str, msgspec.Meta(max_length=kept.MAX_NAME)] = ""
    hops: kept.FeedHops | None = None
    interval_min: kept.Interval | None = None


class FeedChange(Model):
    """Holds what is to change of a feed; what is not given stays as it is. It is read anew then."""

    url: Url | None = None
    name: kept.Name | None = None
    hops: kept.FeedHops | None = None
    interval_min: kept.Interval | None = None


class Article(Model):
    uid: Annotated[str, msgspec.Meta(description="which entry it is, as the feed says")]
    title: str
    torrent_url: str
    link: str
    published_s: float
    size_bytes: Annotated[int, msgspec.Meta(description="0: the feed does not say")]
    is_read: Annotated[bool, msgspec.Meta(description="no rule looks at it any more")]
    added_by: Annotated[str, msgspec.Meta(description="the name of the rule that has added it")]
    problem: Annotated[str, msgspec.Meta(description="why it could not be added")]


class NewRule(Model):
    """Says which articles are added, and how; without regular expressions, patterns are words as in qBittorrent."""

    enabled: bool = True
    must: Annotated[kept.Pattern, msgspec.Meta(description="what a title has to have")] = ""
    must_not: Annotated[kept.Pattern, msgspec.Meta(description="what it must not have")] = ""
    is_regex: bool = False
    episodes: Annotated[kept.Pattern, msgspec.Meta(description="like 1x2;8-15;30-;")] = ""
    once: Annotated[bool, msgspec.Meta(description="each episode once")] = False
    feeds: FeedNumbers | None = None
    ignore_days: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    labels: Labels = msgspec.field(default_factory=list)
    folder: Text | None = None
    hops: Hops | None = None
    stopped: bool | None = None


class Rule(NewRule, kw_only=True):
    name: str
    matched_s: Annotated[float | None, msgspec.Meta(description="when what it last added was published")]


class FeedsApi:
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds

    def operations(self) -> list[Operation]:
        one, rule = "/api/feeds/{number}", "/api/rules/{name}"
        return [
            Operation("feeds", "GET", "/api/feeds", "All feeds", self._all, list[Feed]),
            Operation("add_feed", "POST", "/api/feeds", "Add a feed", self._add, Feed, NewFeed, status=201),
            Operation("change_feed", "PATCH", one, "Change a feed", self._change, None, FeedChange),
            Operation("remove_feed", "DELETE", one, "Remove a feed, and no torrent", self._remove),
            Operation("refresh_feed", "POST", one + "/refresh", "Read a feed now", self._refresh),
            Operation("articles", "GET", one + "/articles", "Its articles", self._articles, list[Article]),
            Operation("rules", "GET", "/api/rules", "The rules", self._rules, list[Rule]),
            Operation("put_rule", "PUT", rule, "Add a rule, or replace it", self._put_rule, None, NewRule),
            Operation(
                "matches", "GET", rule + "/matches", "What it would take, by feed", self._matches, dict[str, list[str]]
            ),
            Operation("remove_rule", "DELETE", rule, "Remove a rule", self._remove_rule),
        ]

    def _found(self, call: Call) -> kept.Feed:
        if (feed := self._feeds.find(call.whole("number"))) is None:
            raise NotFoundError("there is no such feed")
        return feed

    def _view(self, feed: kept.Feed) -> Feed:
        articles = self._feeds.articles(feed)
        return Feed(
            number=feed.number,
            url=feed.url,
            name=feed.name,
            title=feed.title,
            hops=0 if self._feeds.is_direct(feed) else feed.hops,
            interval_min=feed.interval_min,
            articles=len(articles),
            unread=sum(not article.is_read for article in articles),
            is_being_read=self._feeds.is_being_read(feed),
            read_s=feed.read_s or None,
            problem=feed.problem,
        )

    async def _all(self, call: Call) -> list[Feed]:
        return list(map(self._view, self._feeds.feeds))

    async def _add(self, call: Call) -> Feed:
        body: NewFeed = call.body
        return self._view(await self._feeds.add(body.url, body.name, body.hops, body.interval_min))

    async def _change(self, call: Call) -> None:
        feed, given = self._found(call), msgspec.structs.asdict(call.body)
        changes = {name: value for name, value in given.items() if value is not None}
        if changes:
            await self._feeds.change(feed, **changes)

    async def _remove(self, call: Call) -> None:
        await self._feeds.remove(self._found(call))

    async def _refresh(self, call: Call) -> None:
        self._feeds.refresh(self._found(call))

    async def _articles(self, call: Call) -> list[Article]:
        articles = self._feeds.articles(self._found(call))
        return [Article(**{name: getattr(each, name) for name in Article.__struct_fields__}) for each in articles]

    async def _rules(self, call: Call) -> list[Rule]:
        return [self._rule_view(rule) for rule in self._feeds.rules]

    def _rule_view(self, rule: kept.Rule) -> Rule:
        same = {name: getattr(rule, name) for name in NewRule.__struct_fields__ if name not in ("feeds", "folder")}
        found = [self._feeds.find(url) for url in rule.feeds or ()]
        numbers = None if rule.feeds is None else [feed.number for feed in found if feed is not None]
        return Rule(name=rule.name, feeds=numbers, folder=rule.folder or None, matched_s=rule.matched_s or None, **same)

    async def _put_rule(self, call: Call) -> None:
        body: NewRule = call.body
        name = call.words["name"]
        feeds = [self._feeds.find(number) for number in body.feeds or ()]
        if None in feeds:
            raise RequestError("there is no feed of one of these numbers")
        fields = msgspec.structs.asdict(body)
        urls = [feed.url for feed in feeds if feed is not None]
        fields |= {"feeds": None if body.feeds is None else urls, "folder": body.folder or ""}
        await self._feeds.put_rule(kept.Rule(name=name, **fields))

    def _found_rule(self, call: Call) -> kept.Rule:
        if (rule := self._feeds.rule(call.words["name"])) is None:
            raise NotFoundError("there is no such rule")
        return rule

    async def _matches(self, call: Call) -> dict[str, list[str]]:
        return await self._feeds.wanted_by(self._found_rule(call))

    async def _remove_rule(self, call: Call) -> None:
        self._found_rule(call)
        await self._feeds.remove_rule(call.words["name"])
