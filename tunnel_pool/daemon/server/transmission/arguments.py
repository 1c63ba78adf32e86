"""The arguments of Transmission's methods, read and checked. Each function raises RequestError for a wrong one."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import libtorrent as lt
import msgspec

from tunnel_pool.daemon.changes.edits import Edit, EditTrackers, Enqueue, Move, Relabel, Select, SetFields, SetHops
from tunnel_pool.daemon.changes.planning import refused
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import HIGH, LOW, NORMAL, UNWANTED, LimitMode
from tunnel_pool.daemon.rules.groups import Speed
from tunnel_pool.daemon.rules.hops import checked_hops, hops_of_labels
from tunnel_pool.daemon.server.transmission import groups, trackers
from tunnel_pool.daemon.sources import of_metainfo, of_source
from tunnel_pool.daemon.storage.settings import MAX_COUNT, Count
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.destinations import is_address
from tunnel_pool.torrent.metainfo import MAX_LINK_PEERS

# Fields of a record by keys of torrent-set.
SETTABLE = {
    "bandwidth_priority": "bandwidth_priority",
    "download_limit": "download_limit_kb",
    "download_limited": "download_limited",
    "group": "group",
    "honors_session_limits": "honors_session_limits",
    "name": "name",  # neither this nor the two of seeding time are Transmission's
    "peer_limit": "peer_limit",
    "seed_idle_limit": "idle_limit_min",
    "seed_idle_mode": "idle_mode",
    "seed_ratio_limit": "ratio_limit",
    "seed_ratio_mode": "ratio_mode",
    "seeding_time_limit": "seeding_limit_min",
    "seeding_time_mode": "seeding_mode",
    "sequential_download": "sequential",
    "upload_limit": "upload_limit_kb",
    "upload_limited": "upload_limited",
}
FILES = {"files_unwanted": UNWANTED, "priority_low": LOW, "priority_normal": NORMAL, "priority_high": HIGH}
MAX_FILES = 1 << 20
Arguments = dict[str, object]


def typed(value: Any, kind: Any, name: str) -> Any:
    """Raises RequestError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"invalid argument: {name}: {error}") from None


def flag(arguments: Arguments, name: str, otherwise: bool | None) -> Any:
    """Read true or false, which old clients write as 1 and 0. Raises RequestError."""
    value = arguments.get(name, otherwise)
    return bool(value) if value in (0, 1) else typed(value, bool | None, name)


def hops_of(value: object) -> int | None:
    with refused():
        return checked_hops(value) if value is not None else None


def highest_hops(labels: Sequence[str]) -> int | None:
    """Return the highest hop count of labels, as clients send old ones with the new. Raises RequestError."""
    with refused():
        said = [hops_of_labels([label]) for label in labels]
    return max((hops for hops in said if hops is not None), default=None)


def peers_of(arguments: Arguments) -> list[tuple[str, int]]:
    """Return the peers of our own argument `peers`, each an IP address and a port. Raises RequestError."""
    texts = typed(arguments.get("peers", []), list[str], "peers")
    if len(texts) > MAX_LINK_PEERS:
        raise RequestError(f"invalid argument: peers: {MAX_LINK_PEERS} are the most")
    peers = []
    for text in texts:
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        if not is_address(host) or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 1 << 16:
            raise RequestError("invalid argument: peers: each is an IP address and a port, like 192.0.2.1:6881")
        peers.append((host, int(port)))
    return peers


class _Fields(msgspec.Struct):
    bandwidth_priority: Annotated[int, msgspec.Meta(ge=-1, le=1)] = 0
    download_limit: Speed = 0
    download_limited: bool = False
    group: Annotated[str, msgspec.Meta(max_length=groups.MAX_NAME)] = ""
    honors_session_limits: bool = True
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] = ""
    peer_limit: Count = 0
    seed_idle_limit: Count = 0
    seed_idle_mode: LimitMode = LimitMode.GLOBAL
    seed_ratio_limit: Annotated[float, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0.0
    seed_ratio_mode: LimitMode = LimitMode.GLOBAL
    seeding_time_limit: Count = 0
    seeding_time_mode: LimitMode = LimitMode.GLOBAL
    sequential_download: bool = False
    upload_limit: Speed = 0
    upload_limited: bool = False


def fields_of(arguments: Arguments) -> Arguments:
    """Return the fields of a record that the arguments set. Raises msgspec.ValidationError."""
    given = {key: arguments[key] for key in SETTABLE if key in arguments}
    checked = msgspec.convert(given, _Fields, strict=False)
    return {SETTABLE[key]: getattr(checked, key) for key in given}


def priorities_of(before: Iterable[int], files: Sequence[int] | None, arguments: Arguments) -> list[int]:
    """Return libtorrent's priorities of files as changed; an empty list of files means all of them.

    `files` are libtorrent's numbers of those that clients see, None while they are not known. Raises RequestError.
    """
    priorities = list(before)
    for key, priority in (("files_wanted", NORMAL), *FILES.items()):
        if key not in arguments:
            continue
        seen = files if files is not None else range(len(priorities))
        chosen = typed(arguments[key], list[int], key) or list(range(len(seen)))
        if any(not 0 <= index < (len(seen) if files is not None else MAX_FILES) for index in chosen):
            raise RequestError(f"invalid argument: {key}: there is no such file")
        indexes = [files[index] if files is not None else index for index in chosen]
        priorities += [NORMAL] * (max(indexes, default=-1) + 1 - len(priorities))
        for index in indexes:
            was_unwanted = priorities[index] == UNWANTED
            if key == "files_wanted" and not was_unwanted:
                continue  # the file keeps its priority
            if key.startswith("priority_") and was_unwanted:
                continue  # a priority does not make the file wanted
            priorities[index] = priority
    return priorities


def edits_of(arguments: Arguments) -> list[Edit]:
    """Return the edits that torrent-set asks for. Raises RequestError and msgspec.ValidationError."""
    edits: list[Edit] = []
    if fields := fields_of(arguments):
        edits.append(SetFields(fields))
    labels = typed(arguments.get("labels"), list[str] | None, "labels")
    if labels is not None:
        edits.append(Relabel.to(labels))
    hops, said = hops_of(arguments.get("hops", arguments.get("anon_hops"))), highest_hops(labels or ())
    if hops is not None or said is not None:
        edits.append(SetHops(hops, said, flag(arguments, "confirm_fewer_hops", False)))
    if not arguments.keys().isdisjoint(("files_wanted", *FILES)):
        edits.append(Select(lambda torrent: _priorities_after(torrent, arguments)))
    if "tracker_list" in arguments:
        tiers = [tier.split() for tier in typed(arguments["tracker_list"], str, "tracker_list").split("\n\n")]
        edits.append(EditTrackers(lambda _: tiers))
    elif not arguments.keys().isdisjoint(trackers.EDITS):
        edits.append(EditTrackers(lambda tiers: trackers.edited(tiers, arguments)))
    if "queue_position" in arguments:
        edits.append(Enqueue(typed(arguments["queue_position"], int, "queue_position")))
    if "location" in arguments:
        edits.append(Move(typed(arguments["location"], str, "location")))
    return edits


def _priorities_after(torrent: Torrent, arguments: Arguments) -> list[int]:
    files = torrent.file_indexes() if torrent.layout is not None else None
    return priorities_of(torrent.record.file_priorities, files, arguments)


def parameters_of(arguments: Arguments) -> lt.add_torrent_params:
    """Return libtorrent's parameters for torrent-add. Raises RequestError."""
    metainfo = typed(arguments.get("metainfo"), str | None, "metainfo")
    filename = typed(arguments.get("filename"), str | None, "filename")
    if metainfo:
        return of_metainfo(metainfo)
    if not filename:
        raise RequestError("no filename or metainfo specified")
    return of_source(filename, files=True)
