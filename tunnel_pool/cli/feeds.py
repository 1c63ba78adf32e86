"""tunnel-pool feeds and rules: which lists on the web a running daemon reads, and what it adds of them."""

import argparse
import datetime
from typing import Any
from urllib.parse import quote

from tunnel_pool.cli.arguments import options
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options
from tunnel_pool.cli.remote import printable, remote_of, table_of
from tunnel_pool.daemon.feeds.model import LEAST_INTERVAL_MIN, MOST_INTERVAL_MIN
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.overlay.config import MAX_HOPS
from tunnel_pool.system.errors import UserError

DESCRIPTIONS = {
    "feeds": "Lists of torrents on the web (RSS, Atom) that a running daemon reads, through the tunnels: by https:// "
    "alone, or from an address in your own network.",
    "rules": "Rules by which a running daemon adds torrents of its feeds.",
}
ACTIONS = {
    "feeds": {
        "list": "Show the feeds.",
        "add": "Add a feed; it is read at once, and its articles are there for rules.",
        "remove": "Remove a feed, and no torrent.",
        "refresh": "Have a feed read now.",
        "articles": "Show the articles of a feed, and what became of them.",
    },
    "rules": {
        "list": "Show the rules.",
        "set": "Make a rule, or replace the one of this name; articles that are there are looked through at once.",
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
    if action == "add":
        parser.add_argument("url", metavar="URL", help="Where the feed is, like https://tracker.example/rss.")
        parser.add_argument("--name", default="", metavar="NAME", help="What it is called here. Default: its host.")
        parser.add_argument(
            "--hops",
            type=options.whole_number(1, MAX_HOPS),
            metavar="H",
            help="Hop count of the circuits by which it is fetched, 1 to 3. Default: that of new torrents.",
        )
        parser.add_argument(
            "--every",
            type=options.whole_number(LEAST_INTERVAL_MIN, MOST_INTERVAL_MIN),
            metavar="MINUTES",
            help="How often it is read. Default: 30.",
        )
    elif action != "list":
        parser.add_argument("feed", metavar="FEED", help="Number or name of a feed.")


def _add_rule_options(parser: argparse.ArgumentParser, action: str) -> None:
    if action == "list":
        return
    parser.add_argument("name", metavar="NAME", help="Name of the rule.")
    if action == "remove":
        return
    parser.add_argument(
        "--match",
        default="",
        metavar="WORDS",
        help="Words that a title has to have, in any case; * is any text, ? any character, | stands between "
        "alternatives. Default: every title.",
    )
    parser.add_argument("--not", dest="must_not", default="", metavar="WORDS", help="Words that it must not have.")
    parser.add_argument("--regex", action="store_true", help="--match and --not are regular expressions.")
    parser.add_argument(
        "--episodes", default="", metavar="LIST", help="Episodes of a season, like 1x2;8-15;30-; of season 1."
    )
    parser.add_argument("--once", action="store_true", help="Add each episode once, whoever offers it again.")
    parser.add_argument(
        "--feed", action="append", default=[], metavar="FEED", help="Feed to look at; may be repeated. Default: all."
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="LABEL", help="Label of the torrents; may be repeated."
    )
    parser.add_argument(
        "--to", type=options.folder, metavar="DIR", help="Folder on the daemon's machine to download to."
    )
    parser.add_argument(
        "--hops", type=options.whole_number(0, MAX_HOPS), metavar="H", help="Hop count of the torrents, 0 (plain) to 3."
    )
    parser.add_argument("--paused", action="store_true", help="Do not start the torrents yet.")
    parser.add_argument("--off", action="store_true", help="Keep the rule, but add nothing by it.")


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    async with remote_of(arguments) as remote:
        asked = _ask_feeds if arguments.command == "feeds" else _ask_rules
        return {"ok": True, "action": arguments.action, **await asked(remote, arguments)}


async def _ask_feeds(remote: Remote, arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.action == "add":
        wish = {"url": arguments.url, "name": arguments.name}
        if arguments.hops is not None:
            wish["hops"] = arguments.hops
        if arguments.every is not None:
            wish["interval_min"] = arguments.every
        return {"feeds": [await remote.api("POST", "/api/feeds", wish)]}
    feeds = await remote.api("GET", "/api/feeds")
    if arguments.action == "list":
        return {"feeds": feeds}
    feed = _named(feeds, arguments.feed)
    path = f"/api/feeds/{feed['number']}"
    match arguments.action:
        case "remove":
            await remote.api("DELETE", path)
        case "refresh":
            await remote.api("POST", f"{path}/refresh")
        case "articles":
            return {"feeds": [feed], "articles": await remote.api("GET", f"{path}/articles")}
    return {"feeds": [feed]}


async def _ask_rules(remote: Remote, arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.action == "list":
        feeds = {feed["number"]: feed["name"] for feed in await remote.api("GET", "/api/feeds")}
        rules = await remote.api("GET", "/api/rules")
        for rule in rules:
            if rule["feeds"] is not None:
                rule["feeds"] = [feeds.get(number, "?") for number in rule["feeds"]]
        return {"rules": rules}
    path = f"/api/rules/{quote(arguments.name, safe='')}"
    if arguments.action == "remove":
        await remote.api("DELETE", path)
        return {"name": arguments.name}
    feeds = await remote.api("GET", "/api/feeds") if arguments.feed else []
    rule = {
        "enabled": not arguments.off,
        "must": arguments.match,
        "must_not": arguments.must_not,
        "is_regex": arguments.regex,
        "episodes": arguments.episodes,
        "once": arguments.once,
        "feeds": [_named(feeds, name)["number"] for name in arguments.feed] or None,
        "labels": arguments.label,
        "folder": str(arguments.to.absolute()) if arguments.to is not None else None,
        "hops": arguments.hops,
        "stopped": True if arguments.paused else None,
    }
    await remote.api("PUT", path, rule)
    return {"name": arguments.name}


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
    done = {"add": "added", "remove": "removed", "refresh": "being read", "set": "holds"}
    return printable(f"{done[action]}: {name}")


def _feeds_shown(feeds: list[dict[str, Any]]) -> str:
    if not feeds:
        return "no feeds; add one by `tunnel-pool feeds add URL`"
    rows = [
        [
            feed["number"],
            feed["name"],
            feed["hops"],
            feed["articles"],
            feed["unread"],
            _when(feed["read_s"]),
            "being read" if feed["is_being_read"] else feed["problem"] or "fine",
        ]
        for feed in feeds
    ]
    return table_of(("id", "name", "hops", "articles", "new", "read", "state"), rows)


def _articles_shown(articles: list[dict[str, Any]]) -> str:
    if not articles:
        return "the feed has no articles yet"
    rows = [
        [
            _when(article["published_s"]),
            article["problem"] or ("taken" if article["is_read"] else "new"),
            article["title"],
        ]
        for article in articles
    ]
    return table_of(("date", "state", "title"), rows)


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
            _when(rule["matched_s"]),
        ]
        for rule in rules
    ]
    return table_of(("name", "is", "match", "not", "feeds", "last added"), rows)


def _when(time_s: float | None) -> str:
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M") if time_s else "never"
