"""qBittorrent's calls on feeds and rules (its rsscontroller.cpp); feeds are in no folders."""

import email.utils
from collections.abc import Mapping

import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.planning import refused
from tunnel_pool.daemon.errors import ConflictError, RequestError
from tunnel_pool.daemon.feeds.feeds import Feeds
from tunnel_pool.daemon.feeds.model import (
    LEAST_INTERVAL_MIN,
    MOST_INTERVAL_MIN,
    USUAL_INTERVAL_MIN,
    Article,
    Feed,
    Rule,
)
from tunnel_pool.daemon.rules.hops import hops_of_labels, other_labels
from tunnel_pool.daemon.server.qbittorrent.categories import category_of, tags_of
from tunnel_pool.daemon.server.qbittorrent.words import Call, Words


class TorrentParameters(msgspec.Struct):
    """Holds what a rule says of the torrents that it adds; of what else qBittorrent has there, nothing is done."""

    category: str = ""
    tags: list[str] = []
    save_path: str = ""
    stopped: bool | None = None


class RuleDefinition(msgspec.Struct, rename="camel"):
    """Holds a rule as qBittorrent's clients send it; those before version 4.6 have the last three."""

    enabled: bool = True
    priority: int = 0
    use_regex: bool = False
    must_contain: str = ""
    must_not_contain: str = ""
    episode_filter: str = ""
    affected_feeds: list[str] = []
    ignore_days: int = 0
    last_match: str = ""
    smart_filter: bool = False
    previously_matched_episodes: list[str] | None = None
    torrent_params: TorrentParameters | None = None
    add_paused: bool | None = None
    assigned_category: str = ""
    save_path: str = ""


class Rss:
    def __init__(self, feeds: Feeds, changes: Changes) -> None:
        self._feeds = feeds
        self._changes = changes

    def reading(self) -> dict[str, Call]:
        return {"rss/items": self._items, "rss/rules": self._rules, "rss/matchingArticles": self._matching}

    def changing(self) -> dict[str, Call]:
        return {
            "rss/addFeed": self._add_feed,
            "rss/addFolder": self._add_folder,
            "rss/markAsRead": self._mark_as_read,
            "rss/moveItem": self._move_item,
            "rss/refreshItem": self._refresh_item,
            "rss/removeItem": self._remove_item,
            "rss/removeRule": self._remove_rule,
            "rss/renameRule": self._rename_rule,
            "rss/setFeedRefreshInterval": self._set_interval,
            "rss/setFeedURL": self._set_url,
            "rss/setRule": self._set_rule,
        }

    def _found(self, words: Words, name: str) -> Feed:
        if (feed := self._feeds.find(words.text(name))) is None:
            raise ConflictError(f"There is no such feed: {words.text(name)}")
        return feed

    def _named(self, words: Words) -> list[Feed]:
        """Return the feed that a client names, none if there is no such feed; all, where none is named."""
        name = words.text("itemPath", "")
        found = self._feeds.find(name)
        return self._feeds.feeds if not name else [found] if found is not None else []

    # Feeds

    async def _items(self, words: Words) -> dict[str, object]:
        with_data = bool(words.flag("withData"))
        return {feed.name: self._shown(feed, with_data) for feed in self._feeds.feeds}

    def _shown(self, feed: Feed, with_data: bool) -> dict[str, object]:
        shown: dict[str, object] = {"uid": feed.uid, "url": feed.url, "refreshInterval": feed.interval_min * 60}
        if with_data:
            shown |= {
                "title": feed.title,
                "lastBuildDate": _date(feed.read_s),
                "isLoading": self._feeds.is_being_read(feed),
                "hasError": bool(feed.problem),
                "articles": list(map(_article_shown, self._feeds.articles(feed))),
            }
        return shown

    async def _add_feed(self, words: Words) -> None:
        minutes = words.number("refreshInterval", 0) // 60
        await self._feeds.add(
            words.text("url").strip(), words.text("path", ""), interval_min=_interval(minutes) if minutes else None
        )

    async def _add_folder(self, words: Words) -> None:
        raise ConflictError("feeds are in no folders here")

    async def _set_url(self, words: Words) -> None:
        await self._feeds.change(self._found(words, "path"), url=words.text("url").strip())

    async def _set_interval(self, words: Words) -> None:
        minutes = words.number("refreshInterval") // 60
        feed = self._found(words, "path")
        await self._feeds.change(feed, interval_min=_interval(minutes) if minutes else USUAL_INTERVAL_MIN)

    async def _move_item(self, words: Words) -> None:
        name = words.text("destPath", "")
        if not name:
            raise ConflictError("A feed needs a name")
        await self._feeds.change(self._found(words, "itemPath"), name=name)

    async def _remove_item(self, words: Words) -> None:
        await self._feeds.remove(self._found(words, "path"))

    async def _refresh_item(self, words: Words) -> None:
        """Have a feed read now; all, where none is named."""
        for feed in self._named(words):
            self._feeds.refresh(feed)

    async def _mark_as_read(self, words: Words) -> None:
        uid = words.text("articleId", "") or None
        for feed in self._named(words):
            await self._feeds.mark_read(feed, uid)

    # Rules

    async def _rules(self, words: Words) -> dict[str, object]:
        categories = self._changes.categories()
        feeds = [feed.url for feed in self._feeds.feeds]
        return {rule.name: _rule_shown(rule, feeds, categories) for rule in self._feeds.rules}

    async def _matching(self, words: Words) -> dict[str, list[str]]:
        rule = self._feeds.rule(words.text("ruleName"))
        return await self._feeds.wanted_by(rule) if rule is not None else {}

    async def _set_rule(self, words: Words) -> None:
        name = words.text("ruleName").strip()
        try:
            given = _definition_of(words.text("ruleDef"))
            with refused():
                rule = msgspec.convert(_rule_fields(name, given), type=Rule)
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"the rule can't be read: {error}") from None
        before = self._feeds.rule(name)
        is_for_all = {feed.url for feed in self._feeds.feeds} == set(rule.feeds or ())
        if before is not None and before.feeds is None and is_for_all:
            rule.feeds = None  # as which all of them were shown
        await self._feeds.put_rule(rule, forgets=given.previously_matched_episodes == [])

    async def _rename_rule(self, words: Words) -> None:
        await self._feeds.rename_rule(words.text("ruleName"), words.text("newRuleName").strip())

    async def _remove_rule(self, words: Words) -> None:
        await self._feeds.remove_rule(words.text("ruleName"))


def _interval(minutes: int) -> int:
    return min(max(minutes, LEAST_INTERVAL_MIN), MOST_INTERVAL_MIN)


def _date(time_s: float) -> str:
    """Return a time as qBittorrent writes it, in RFC 2822's way; empty for none."""
    return email.utils.formatdate(time_s) if time_s else ""


def _article_shown(article: Article) -> dict[str, object]:
    return {
        "id": article.uid,
        "date": _date(article.published_s),
        "title": article.title,
        "author": article.author,
        "category": article.category,
        "description": article.description,
        "torrentURL": article.torrent_url,
        "link": article.link,
        "isRead": article.is_read,
    }


def _definition_of(text: str) -> RuleDefinition:
    """Return a rule as a client gave it; null is as nothing, and one feed may be a text. Raises msgspec's errors."""
    given = _without_nulls(msgspec.json.decode(text))
    if isinstance(given, dict) and isinstance(given.get("affectedFeeds"), str):
        given["affectedFeeds"] = [given["affectedFeeds"]]
    return msgspec.convert(given, type=RuleDefinition, strict=False)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value


def _rule_fields(name: str, given: RuleDefinition) -> dict[str, object]:
    """Return the fields of our rule. Raises ValueError for a wrong tag of hops."""
    torrent = given.torrent_params or TorrentParameters(given.assigned_category, [], given.save_path, given.add_paused)
    labels = [word for text in (torrent.category, *torrent.tags) if (word := text.strip())]
    return {
        "name": name,
        "enabled": given.enabled,
        "must": given.must_contain,
        "must_not": given.must_not_contain,
        "is_regex": given.use_regex,
        "episodes": given.episode_filter,
        "once": given.smart_filter,
        "seen": given.previously_matched_episodes or [],
        "feeds": given.affected_feeds,
        "ignore_days": given.ignore_days,
        "priority": given.priority,
        "labels": other_labels(labels),
        "folder": torrent.save_path,
        "hops": hops_of_labels(labels),
        "stopped": torrent.stopped,
    }


def _rule_shown(rule: Rule, feeds: list[str], categories: Mapping[str, str]) -> dict[str, object]:
    category = category_of(rule.labels, categories)
    tags = tags_of(rule.labels, rule.hops, categories) if rule.hops is not None else []
    tags = tags or [label for label in rule.labels if label != category]
    return {
        "enabled": rule.enabled,
        "priority": rule.priority,
        "useRegex": rule.is_regex,
        "mustContain": rule.must,
        "mustNotContain": rule.must_not,
        "episodeFilter": rule.episodes,
        "affectedFeeds": feeds if rule.feeds is None else rule.feeds,
        "ignoreDays": rule.ignore_days,
        "lastMatch": _date(rule.matched_s),
        "smartFilter": rule.once,
        "previouslyMatchedEpisodes": rule.seen,
        "torrentParams": {
            "category": category,
            "tags": tags,
            "save_path": rule.folder,
            "stopped": rule.stopped,
        },
        # As before version 4.6.
        "addPaused": rule.stopped,
        "assignedCategory": category,
        "savePath": rule.folder,
    }
