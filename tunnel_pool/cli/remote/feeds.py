"""tunnel-pool feeds and rules: which lists on the web a running daemon reads, and what it adds of them."""

import argparse
import datetime
from typing import Any
from urllib.parse import quote

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options
from tunnel_pool.cli.arguments.secret_text import FROM_ELSEWHERE, secret_text
from tunnel_pool.cli.remote.remote import printable, remote_of, table_of
from tunnel_pool.daemon.feeds.model import LEAST_INTERVAL_MIN, MOST_INTERVAL_MIN
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.system.errors import UsageError, UserError

DESCRIPTIONS = {
    "feeds": "Lists of torrents on the web (RSS, Atom) that a running daemon reads, through the tunnels: by https:// "
    "alone, or from an address in your own network.",
    "rules": "Rules by which a running daemon adds torrents of its feeds.",
}
ACTIONS = {
    "feeds": {
        "list": "Show the feeds.",
        "add": "Add a feed; it is read at once, and its articles are there for rules.",
        "set": "Change a feed; what is not given stays as it is.",
        "remove": "Remove a feed, and no torrent.",
        "refresh": "Have a feed read now, and the torrents tried again that could not be had.",
        "articles": "Show the articles of a feed, and what became of them.",
    },
    "rules": {
        "list": "Show the rules.",
        "set": "Make a rule, or change the one of this name; what is not given stays as it is. Articles that are there "
        "are looked through at once.",
        "matches": "Show the articles that a rule takes.",
        "remove": "Remove a rule, and no torrent.",
    },
}


def add_options(parser: argparse.ArgumentParser) -> None:
    command = parser.prog.split()[-1]
    parser.description = DESCRIPTIONS[command]
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="One of those below.")
    for action, description in ACTIONS[command].items():
        below = actions.add_parser(action, description=description, help=description)
        if command == "feeds":
            _add_feed_options(below, action)
        else:
            _add_rule_options(below, action)
        add_rpc_options(below)
        options.add_output_options(below)
        below.set_defaults(run=run)


def _add_feed_options(parser: argparse.ArgumentParser, action: str) -> None:
    if action == "list":
        return
    if action == "add":
        where = f"Where the feed is, like https://tracker.example/rss. {FROM_ELSEWHERE}"
        parser.add_argument("url", type=secret_text, metavar="URL", help=where)
    else:
        parser.add_argument("feed", metavar="FEED", help="Number or name of a feed.")
    if action == "set":
        parser.add_argument(
            "--url", type=secret_text, metavar="URL", help=f"Where the feed is from now on. {FROM_ELSEWHERE}"
        )
    if action in ("add", "set"):
        parser.add_argument("--name", metavar="NAME", help="What it is called here. Default: its host.")
        parser.add_argument(
            "--hops",
            type=values.whole_number(1, MAX_HOPS),
            metavar="H",
            help="Hop count of the circuits by which it is fetched, 1 to 3. Default: that of new torrents.",
        )
        parser.add_argument(
            "--every",
            type=values.whole_number(LEAST_INTERVAL_MIN, MOST_INTERVAL_MIN),
            metavar="MINUTES",
            help="How often it is read. Default: 30.",
        )


def _add_rule_options(parser: argparse.ArgumentParser, action: str) -> None:
    if action == "list":
        return
    parser.add_argument("name", metavar="NAME", help="Name of the rule.")
    if action != "set":
        return
    parser.add_argument(
        "--match",
        metavar="WORDS",
        help="Words that a title has to have, in any case; * is any text, ? any character, | stands between "
        "alternatives. '*' takes every title.",
    )
    parser.add_argument("--not", dest="must_not", metavar="WORDS", help="Words that it must not have.")
    _add_switch(parser, "--regex", "Whether --match and --not are regular expressions.")
    parser.add_argument("--episodes", metavar="LIST", help="Episodes of a season, like 1x2;8-15;30-; of season 1.")
    _add_switch(
        parser,
        "--once",
        "Whether to add each episode once, whoever offers it again; a PROPER or REPACK of it is one more.",
    )
    parser.add_argument(
        "--feed", action="append", metavar="FEED", help="Feed to look at; may be repeated. Default: all."
    )
    parser.add_argument("--label", action="append", metavar="LABEL", help="Label of the torrents; may be repeated.")
    parser.add_argument(
        "--to", type=values.folder, metavar="DIR", help="Folder on the daemon's machine to download to."
    )
    parser.add_argument(
        "--hops", type=values.whole_number(0, MAX_HOPS), metavar="H", help="Hop count of the torrents, 0 (plain) to 3."
    )
    _add_switch(parser, "--paused", "Whether not to start the torrents yet.")
    _add_switch(parser, "--on", "Whether it adds anything. Default: it does.")


def _add_switch(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """Add an option and its opposite; None stands for neither."""
    parser.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=what)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    async with remote_of(arguments) as remote:
        asked = _ask_feeds if arguments.command == "feeds" else _ask_rules
        return {"ok": True, "action": arguments.action, **await asked(remote, arguments)}


async def _ask_feeds(remote: Remote, arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.action == "add":
        return {"feeds": [await remote.api("POST", "/api/feeds", _feed_fields(arguments))]}
    feeds = await remote.api("GET", "/api/feeds")
    if arguments.action == "list":
        return {"feeds": feeds}
    feed = _named(feeds, arguments.feed)
    path = f"/api/feeds/{feed['number']}"
    match arguments.action:
        case "set":
            await remote.api("PATCH", path, _feed_fields(arguments))
        case "remove":
            await remote.api("DELETE", path)
        case "refresh":
            await remote.api("POST", f"{path}/refresh")
        case "articles":
            return {"feeds": [feed], "articles": await remote.api("GET", f"{path}/articles")}
    return {"feeds": [feed]}


def _feed_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {
        "url": arguments.url,
        "name": arguments.name,
        "hops": arguments.hops,
        "interval_min": arguments.every,
    }
    return {name: value for name, value in given.items() if value is not None}


async def _ask_rules(remote: Remote, arguments: argparse.Namespace) -> dict[str, Any]:
    rules = await remote.api("GET", "/api/rules")
    feeds = await remote.api("GET", "/api/feeds")
    if arguments.action == "list":
        names = {feed["number"]: feed["name"] for feed in feeds}
        for rule in rules:
            if rule["feeds"] is not None:
                rule["feeds"] = [names.get(number, "?") for number in rule["feeds"]]
        return {"rules": rules}
    before = next((rule for rule in rules if rule["name"] == arguments.name), None)
    if before is None and arguments.action != "set":
        raise UserError(f"there is no rule {arguments.name}; `tunnel-pool rules list` shows them")
    path = f"/api/rules/{quote(arguments.name, safe='')}"
    if arguments.action == "remove":
        await remote.api("DELETE", path)
        return {"name": arguments.name}
    if arguments.action == "set":
        await remote.api("PUT", path, _rule_fields(arguments, before, feeds))
    return {"name": arguments.name, "matches": await remote.api("GET", f"{path}/matches")}


def _rule_fields(
    arguments: argparse.Namespace, before: dict[str, Any] | None, feeds: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a rule as it is to be: as it was but for what is given. Raises UserError."""
    given = {
        "enabled": arguments.on,
        "must": arguments.match,
        "must_not": arguments.must_not,
        "is_regex": arguments.regex,
        "episodes": arguments.episodes,
        "once": arguments.once,
        "feeds": arguments.feed and [_named(feeds, name)["number"] for name in arguments.feed],
        "labels": arguments.label,
        "folder": str(arguments.to.absolute()) if arguments.to is not None else None,
        "hops": arguments.hops,
        "stopped": arguments.paused,
    }
    rule = {name: value for name, value in given.items() if value is not None}
    if before is None and not (arguments.match or arguments.episodes):
        raise UsageError("say which articles it takes: --match WORDS, or --match '*' for all")
    kept = {name: before[name] for name in (*given, "ignore_days", "priority")} if before is not None else {}
    return {**kept, **rule}


def _named(feeds: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Raises UserError."""
    for feed in feeds:
        if name in (str(feed["number"]), feed["name"], feed["url"]):
            return feed
    raise UserError(f"there is no feed {name}; `tunnel-pool feeds list` shows them")


def describe(report: dict[str, Any]) -> str:
    action = report["action"]
    if "rules" in report:
        return _rules_shown(report["rules"])
    if "articles" in report:
        return _articles_shown(report["articles"])
    if action == "list":
        return _feeds_shown(report["feeds"])
    name = report.get("name") or report["feeds"][0]["name"]
    if "matches" in report:
        return printable(_matches_shown(name, report["matches"], action == "matches"))
    done = {"add": "added", "remove": "removed", "refresh": "being read", "set": "saved"}
    return printable(f"{done[action]}: {name}")


def _matches_shown(name: str, matches: dict[str, list[str]], with_titles: bool) -> str:
    count = sum(map(len, matches.values()))
    if not with_titles:
        return f"saved: {name}; of the articles that are known, it takes {count}"
    return "\n".join(f"{feed}: {title}" for feed, titles in matches.items() for title in titles) or "it takes none"


def _feeds_shown(feeds: list[dict[str, Any]]) -> str:
    if not feeds:
        return "no feeds; add one by `tunnel-pool feeds add URL`"
    rows = [
        [
            feed["number"],
            feed["name"],
            feed["hops"] or "direct",
            f"{feed['interval_min']} min",
            feed["articles"],
            feed["unread"],
            _when(feed["read_s"]),
            "being read" if feed["is_being_read"] else feed["problem"] or "fine",
        ]
        for feed in feeds
    ]
    return table_of(("id", "name", "hops", "every", "articles", "new", "read", "state"), rows)


def _articles_shown(articles: list[dict[str, Any]]) -> str:
    if not articles:
        return "the feed has no articles yet"
    return table_of(
        ("title", "date", "state"),
        [[article["title"], _when(article["published_s"]), _state_of(article)] for article in articles],
    )


def _state_of(article: dict[str, Any]) -> str:
    added = f"added by {article['added_by']}" if article["added_by"] else ""
    return article["problem"] or added or ("read" if article["is_read"] else "new")


def _rules_shown(rules: list[dict[str, Any]]) -> str:
    if not rules:
        return "no rules; make one by `tunnel-pool rules set NAME --match WORDS`"
    rows = [
        [
            rule["name"],
            "on" if rule["enabled"] else "off",
            rule["must"] or "everything",
            rule["must_not"],
            "all" if rule["feeds"] is None else ", ".join(rule["feeds"]) or "none",
            ", ".join(_how(rule)),
            _when(rule["matched_s"]),
        ]
        for rule in rules
    ]
    return table_of(("name", "is", "match", "not", "feeds", "how", "newest added"), rows)


def _how(rule: dict[str, Any]) -> list[str]:
    """Return what else a rule says, in words."""
    told = {
        "regex": rule["is_regex"],
        "once": rule["once"],
        rule["episodes"]: rule["episodes"],
        "paused": rule["stopped"],
        "plain, in your name": rule["hops"] == 0,
        f"{rule['hops']} hops": rule["hops"],
        f"to {rule['folder']}": rule["folder"],
        **{f"label {label}": True for label in rule["labels"]},
    }
    return [words for words, holds in told.items() if holds]


def _when(time_s: float | None) -> str:
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M") if time_s else "never"
