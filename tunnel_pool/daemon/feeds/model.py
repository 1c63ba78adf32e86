"""The records of feeds: their addresses, their articles, and the rules by which torrents are added. Pure."""

import uuid
from typing import Annotated

import msgspec

from tunnel_pool.overlay.ground.config import MAX_HOPS

MAX_FEEDS = MAX_RULES = 200
MAX_NAME = 255
MAX_PATTERN = 1000
LEAST_INTERVAL_MIN, USUAL_INTERVAL_MIN, MOST_INTERVAL_MIN = 5, 30, 7 * 24 * 60

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Pattern = Annotated[str, msgspec.Meta(max_length=MAX_PATTERN)]
FeedHops = Annotated[int, msgspec.Meta(ge=1, le=MAX_HOPS, description="of the circuits by which it is fetched")]
Interval = Annotated[int, msgspec.Meta(ge=LEAST_INTERVAL_MIN, le=MOST_INTERVAL_MIN)]


def new_uid() -> str:
    return f"{{{uuid.uuid4()}}}"


class Article(msgspec.Struct, kw_only=True):
    """Holds one entry of a feed; its texts are a stranger's."""

    uid: str  # which entry it is, as the feed says
    title: str
    torrent_url: str  # a magnet link, or where the torrent file is, relative to `source`
    magnet: str = ""  # the link to take where that file can't be had
    source: str = ""  # the URL at which the feed was when it named this
    is_direct: bool = False  # whether that is in the owner's own network
    link: str = ""  # where people can read of it
    description: str = ""
    author: str = ""
    category: str = ""
    published_s: float = 0.0
    size_bytes: int = 0  # 0 where the feed does not say
    is_read: bool = False  # no rule looks at it any more
    added_by: str = ""  # the name of the rule that has added it
    problem: str = ""  # why it could not be added
    tries: int = 0
    again_s: float = 0.0  # when it is tried again, since the epoch


class Reading(msgspec.Struct, kw_only=True):
    """Holds what the process that reads a feed has found."""

    title: str = ""  # the feed's own
    articles: list[Article] = []
    error: str = ""  # why it is no feed


class Feed(msgspec.Struct, kw_only=True):
    number: int
    url: str
    name: str
    uid: str = msgspec.field(default_factory=new_uid)
    hops: int = 1  # of the circuits by which it is fetched, where it is not on this machine's own network
    interval_min: int = USUAL_INTERVAL_MIN
    is_named: bool = True  # by its owner, or by its title; before, it is called by its host
    title: str = ""  # by which it calls itself
    asked_s: float = 0.0  # when it was asked last, since the epoch
    read_s: float = 0.0  # when it last answered
    problem: str = ""  # why it could not be read, empty once it was
    failures: int = 0  # in a row


class Rule(msgspec.Struct, kw_only=True):
    """Says which articles are added, and how. `must` and `must_not` are as in qBittorrent (matching.py)."""

    name: Name
    enabled: bool = True
    must: Pattern = ""
    must_not: Pattern = ""
    is_regex: bool = False
    episodes: Pattern = ""  # like 1x2;8-15;30-;
    once: bool = False  # each episode once (qBittorrent's smart filter)
    feeds: list[str] | None = None  # the URLs of feeds whose articles it looks at; None: all
    ignore_days: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0  # for so long after it has added one, it adds none
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0  # of several that match, the lowest adds
    labels: list[str] = []
    folder: str = ""  # empty: the usual one
    hops: Annotated[int, msgspec.Meta(ge=0, le=MAX_HOPS)] | None = None
    stopped: bool | None = None
    seen: list[str] = []  # episodes that were added
    matched_s: float = 0.0  # when what it last added was published, since the epoch


class Kept(msgspec.Struct, kw_only=True):
    """Holds what is kept of feeds, but for their articles."""

    feeds: list[Feed] = []
    rules: list[Rule] = []
    last_number: int = 0
    added: list[str] = []  # the infohashes of torrents that rules have added, the newest last


class RawKept(msgspec.Struct):
    """Holds the same, of which each feed and rule is decoded by itself."""

    feeds: list[msgspec.Raw] = []
    rules: list[msgspec.Raw] = []
    last_number: int = 0
    added: list[str] = []
