"""The bodies of the API's answers and requests; the OpenAPI document is made of these. Pure.

Times are seconds since the epoch, rates bytes a second, infohashes in hex.
"""

from enum import Enum
from typing import Annotated

import msgspec

from tunnel_pool.overlay.ground.config import MAX_HOPS, MAX_SLOTS

Hops = Annotated[int, msgspec.Meta(ge=0, le=MAX_HOPS, description="0 is plain and not anonymous")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Labels = Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=64)]
Worker = Annotated[int, msgspec.Meta(ge=1, le=MAX_SLOTS)]


class Model(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class TorrentState(Enum):
    STOPPED = "stopped"
    QUEUED = "queued"
    NO_ROOM = "no room"
    CHECKING = "checking"
    MOVING = "moving"
    DOWNLOADING = "downloading"
    SEEDING = "seeding"
    FAILED = "failed"


class Torrent(Model):
    infohash: str
    number: Annotated[int, msgspec.Meta(description="by which clients of Transmission know it")]
    name: str
    hops: Hops
    state: TorrentState
    error: str
    standstill: Annotated[str, msgspec.Meta(description="why nothing comes of a download; empty while it moves")]
    progress: Annotated[Share, msgspec.Meta(description="of what is wanted")]
    size_bytes: Annotated[int, msgspec.Meta(description="that are wanted; 0 until it is known")]
    downloaded_bytes: int
    uploaded_bytes: int
    down_bytes_per_s: int
    up_bytes_per_s: int
    eta_s: int | None
    peers: int
    hidden_peers: Annotated[int, msgspec.Meta(description="over end-to-end circuits")]
    labels: list[str]
    folder: str
    position: Annotated[int, msgspec.Meta(description="in the queue")]
    added_s: float
    done_s: float | None


class File(Model):
    index: Annotated[int, msgspec.Meta(description="for /stream/INFOHASH/INDEX")]
    path: str
    size_bytes: int
    done_bytes: int
    wanted: bool


Source = Annotated[
    str,
    msgspec.Meta(
        max_length=1 << 16,
        description="a magnet link or an infohash",
        extra_json_schema={"pattern": r"^(magnet:\?.+|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})$"},
    ),
]


class NewTorrent(Model):
    """A torrent to add; it has one of `source`, `metainfo` and `resume`."""

    source: Source | None = None
    metainfo: Annotated[str, msgspec.Meta(description="a .torrent file in base64")] | None = None
    resume: (
        Annotated[str, msgspec.Meta(description="libtorrent's resume data in base64, with the metadata: imported")]
        | None
    ) = None
    hops: Hops | None = None
    labels: Labels = []
    folder: Text | None = None
    folder_when_done: Annotated[
        Text | None, msgspec.Meta(description="with `resume`: where its files go once it is whole, if not to `folder`")
    ] = None
    stopped: bool | None = None


class Added(Model):
    torrent: Torrent
    new: Annotated[bool, msgspec.Meta(description="false: it was there before")]


class TorrentChange(Model):
    """Holds what is to change of a torrent; what is not given stays as it is."""

    stopped: bool | None = None
    now: Annotated[bool, msgspec.Meta(description="with `stopped: false`: past the queue")] = False
    hops: Hops | None = None
    confirm_fewer_hops: Annotated[
        bool, msgspec.Meta(description="`hops` may be fewer than before, which makes the torrent easier to trace")
    ] = False
    labels: Labels | None = None


class Changed(Model):
    notice: Annotated[str, msgspec.Meta(description="what others know already of a torrent that was plain")]


class Workers(Model):
    least: Worker
    most: Worker


class Child(Model):
    slot: Annotated[int | None, msgspec.Meta(description="none: the main process")]
    state: str
    pid: int | None
    cpu: Annotated[float, msgspec.Meta(description="cores, over the last second")]
    cpu_s: float
    rss_bytes: int
    circuits: int
    restarts: int


class Pool(Model):
    workers: Annotated[Workers | None, msgspec.Meta(description="none: one process without children")]
    children: list[Child]


class Circuit(Model):
    circuit_id: int
    child: Annotated[int | None, msgspec.Meta(description="its slot")]
    type: str
    state: str
    goal_hops: int
    detour: Annotated[int, msgspec.Meta(description="hops more than were asked for, as no exit answers directly")]
    hops: Annotated[list[str], msgspec.Meta(description="nodes, by the first digits of their keys' hashes")]
    up_bytes: int
    down_bytes: int
    created_s: float
    swarm: Annotated[str | None, msgspec.Meta(description="by what is looked up, of a hidden service's")]
    speaks_streams: Annotated[bool, msgspec.Meta(description="whether its other end carries TCP")]
    streams: Annotated[int, msgspec.Meta(description="TCP connections that it carries now")]
    all_streams: Annotated[int, msgspec.Meta(description="those that it has carried")]
    found_at: Annotated[
        str | None, msgspec.Meta(description="where trackers and the DHT are told to find its lane's torrents")
    ]


class Swarm(Model):
    lookup_hash: str
    infohash: str | None
    hops: int
    seeding: bool
    introduction_points: Annotated[int, msgspec.Meta(description="of seeders that a download has found")]
    offered: Annotated[bool, msgspec.Meta(description="whether an introduction point names us as a seeder")]
    connections: int


class Relay(Model):
    circuit_id: int
    next_id: int
    rendezvous: bool
    up_bytes: int
    down_bytes: int
    created_s: float


class Exit(Model):
    circuit_id: int
    open: Annotated[bool, msgspec.Meta(description="whether it has sent anything out")]
    up_bytes: int
    down_bytes: int
    created_s: float
    streams: Annotated[int, msgspec.Meta(description="TCP connections that it has now")]


class Status(Model):
    version: str
    uptime_s: float
    torrents: int
    down_bytes_per_s: int
    up_bytes_per_s: int
    circuits_ready: int
    streams: Annotated[int, msgspec.Meta(description="TCP connections that our circuits carry now")]
    candidates: Annotated[int, msgspec.Meta(description="nodes known")]
    exits: Annotated[int, msgspec.Meta(description="nodes known that let BitTorrent out")]
    way_out: Annotated[str, msgspec.Meta(description="what keeps circuits from exits, for users; empty: nothing does")]


class Sample(Model):
    """Holds what was measured in one second."""

    time_s: float
    down_bytes_per_s: int
    up_bytes_per_s: int
    main_cpu: float
    children_cpu: float
    circuits_ready: int
    rss_bytes: int


class Dropped(Model):
    datagrams: Annotated[dict[str, int], msgspec.Meta(description="by reason, since the start")]


class State(Model):
    """An event `state`: once a second."""

    status: Status
    pool: Pool
    circuits: list[Circuit]
    sample: Sample


class TorrentChanges(Model):
    """An event `torrents`: all of them at first, then what has changed."""

    changed: list[Torrent]
    removed: list[str]


class Happening(Model):
    """An event `happening`."""

    kind: str
    what: Annotated[str, msgspec.Meta(description="an infohash, the id of a circuit, the slot of a child")]
    now: Annotated[str, msgspec.Meta(description="its state")]


class Setting(Model):
    value: str | int | float | bool | list[str] | None
    source: Annotated[str, msgspec.Meta(description="default, file, environment or command line")]


class Config(Model):
    options: dict[str, Setting]


class Problem(Model):
    error: str
