"""Decides which articles a rule takes, as qBittorrent's rules do (its rss_autodownloadrule.cpp). Pure.

Titles are strangers', and patterns the owner's: one that takes too long on a title is given up for this round.
"""

import functools
import re
from collections.abc import Iterator

import regex

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds.model import Article, Rule

DAY_S = 24 * 60 * 60
MATCH_TIMEOUT_S = 0.05
MAX_SEEN = 2000  # episodes of a rule
# Season and episode, as in S01E02, s1 ep 2, 1x02.
_EPISODE = re.compile(r"(?<![a-z0-9])(?:s(\d{1,4})[ ._-]?e(?:p[ ._-]?)?(\d{1,4})|(\d{1,4})x(\d{1,4}))(?!\d)", re.I)
# As qBittorrent's smart filter has it: those, or a day; what comes first in the title holds.
_NAMED = re.compile(
    r"(?:_|\b)(?:s(\d{1,4})e(\d{1,4})|(\d{1,4})x(\d{1,4})|(\d{4}[.-]\d{1,2}[.-]\d{1,2})|(\d{1,2}[.-]\d{1,2}[.-]\d{4}))"
    r"(?:_|\b)",
    re.I,
)
_AGAIN = re.compile("repack|proper", re.I)
_PART = re.compile(r"(\d{1,4})(-(\d{1,4})?)?")


class TooSlowError(Exception):
    """Says that a rule's pattern takes too long."""


def check(rule: Rule) -> None:
    """Raises RequestError if a rule's patterns mean nothing."""
    for pattern in (rule.must, rule.must_not):
        try:
            for word in _words(pattern, rule.is_regex):
                _compiled(word, rule.is_regex)
        except regex.error as error:
            raise RequestError(f"the pattern of rule {rule.name!r} is no regular expression: {error}") from None
    if rule.episodes and _wanted_episodes(rule.episodes) is None:
        raise RequestError(f"the episodes of rule {rule.name!r} are not like 1x2;8-15;30-;")


def takes(rule: Rule, article: Article, feed_url: str) -> bool:
    """Return whether a rule takes an article of this feed. Raises TooSlowError."""
    if not rule.enabled or (rule.feeds is not None and feed_url not in rule.feeds):
        return False
    return (
        may_take(rule, article)
        and _is_found(rule.must, rule.is_regex, article.title, otherwise=True)
        and not _is_found(rule.must_not, rule.is_regex, article.title, otherwise=False)
        and (not rule.episodes or _is_wanted_episode(rule.episodes, article.title))
    )


def may_take(rule: Rule, article: Article) -> bool:
    """Return whether what a rule has taken before leaves room for this article."""
    if rule.ignore_days and rule.matched_s and article.published_s < rule.matched_s + rule.ignore_days * DAY_S:
        return False
    return not (rule.once and _name_in(rule, article.title) in rule.seen)


def note_taken(rule: Rule, article: Article, now_s: float) -> None:
    rule.matched_s = min(article.published_s or now_s, now_s)
    if rule.once and (name := _name_in(rule, article.title)):
        rule.seen = [*rule.seen, name][-MAX_SEEN:]


def episode_of(title: str) -> str:
    """Return which episode a title names, as qBittorrent writes it: `1x2`, or a day; empty for none."""
    found = _NAMED.search(title)
    parts = [part for part in found.groups() if part] if found is not None else []
    return "x".join(str(int(part)) if part.isdigit() else part for part in parts)


def _name_in(rule: Rule, title: str) -> str:
    """Return the name by which a rule remembers a title; a repack of an episode that it has is another one."""
    name = episode_of(title)
    if name in rule.seen and (again := _AGAIN.findall(title)):
        return "-".join([name, *sorted({word.upper() for word in again}, reverse=True)])
    return name


def _numbers(title: str) -> tuple[int, int] | None:
    """Return the season and the episode that a title names."""
    found = _EPISODE.search(title)
    if found is None:
        return None
    season, episode = (number for number in found.groups() if number is not None)
    return int(season), int(episode)


def _is_found(pattern: str, is_regex: bool, title: str, *, otherwise: bool) -> bool:
    """Return whether a title has what a pattern says; `otherwise` holds for an empty pattern.

    It is a regular expression, or else alternatives between `|`, each of words that all have to be there, with `*` for
    any text and `?` for any character. Case does not matter.
    """
    if not pattern.strip():
        return otherwise
    if is_regex:
        return _matches(pattern, True, title)
    return any(all(_matches(word, False, title) for word in words) for words in _alternatives(pattern))


def _alternatives(pattern: str) -> Iterator[list[str]]:
    return (words for part in pattern.split("|") if (words := part.split()))


def _words(pattern: str, is_regex: bool) -> list[str]:
    return [pattern] if is_regex else [word for words in _alternatives(pattern) for word in words]


def _matches(word: str, is_regex: bool, title: str) -> bool:
    if not is_regex:
        return _has_in_order(word, title)
    try:
        return _compiled(word, True).search(title, timeout=MATCH_TIMEOUT_S) is not None
    except TimeoutError:
        raise TooSlowError from None


def _has_in_order(word: str, title: str) -> bool:
    """Return whether a title has the texts between a word's `*`, one behind the other.

    The first place of each is as good as any other, so that nothing is ever tried twice.
    """
    at = 0
    for text in filter(None, word.split("*")):
        found = _compiled(text, False).search(title, at)
        if found is None:
            return False
        at = found.end()
    return True


@functools.lru_cache(maxsize=1024)
def _compiled(word: str, is_regex: bool) -> "regex.Pattern[str]":
    """Raises regex.error."""
    if not is_regex:
        word = regex.escape(word).replace(r"\?", ".")
    return regex.compile(word, regex.IGNORECASE)


def _is_wanted_episode(episodes: str, title: str) -> bool:
    wanted, numbers = _wanted_episodes(episodes), _numbers(title)
    if wanted is None or numbers is None:
        return False
    season, ranges = wanted
    is_later = any(last is None for _, last in ranges) and numbers[0] > season
    is_in_season = numbers[0] == season and any(
        first <= numbers[1] and (last is None or numbers[1] <= last) for first, last in ranges
    )
    return is_later or is_in_season


@functools.lru_cache(maxsize=256)
def _wanted_episodes(text: str) -> tuple[int, list[tuple[int, int | None]]] | None:
    """Return a season, and ranges of its episodes: `1x2;8-15;30-;`; None where the text says none.

    A range without an end goes on through all later seasons.
    """
    season, times, rest = text.strip().partition("x")
    parts = [part.strip() for part in rest.split(";") if part.strip()]
    found = [_PART.fullmatch(part) for part in parts]
    if not times or not season.isascii() or not season.isdigit() or len(season) > 4 or not parts or None in found:
        return None
    ranges = [
        (int(each[1]), int(each[3]) if each[3] else None if each[2] else int(each[1]))
        for each in found
        if each is not None
    ]
    return int(season), ranges
