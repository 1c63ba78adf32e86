"""Plans what edits make of a torrent's record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tunnel_pool.daemon.changes.edits import (
    AddPeers,
    Edit,
    EditTrackers,
    Relabel,
    SetFields,
    SetHops,
    Stop,
    ToggleSequential,
)
from tunnel_pool.daemon.changes.renaming import Renamed
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.hops import check_labels, other_labels
from tunnel_pool.daemon.rules.tiers import checked
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import MAX_LINK_PEERS

Kind = TypeVar("Kind", bound=Edit)


@dataclass(slots=True)
class Plan:
    """Holds what edits make of a torrent: fields of its record, and what else is done."""

    torrent: Torrent
    edits: Sequence[Edit]
    hops: int
    fields: dict[str, Any]
    changes_session: bool = False
    renamed: Renamed | None = None


def last(edits: Sequence[Edit], kind: type[Kind]) -> Kind | None:
    """Return the last of the edits that is of a kind: it holds over those before."""
    return next((edit for edit in reversed(edits) if isinstance(edit, kind)), None)


@contextmanager
def refused() -> Iterator[None]:
    """Turn the ValueError of a wrong hop count or label into a RequestError."""
    try:
        yield
    except ValueError as error:
        raise RequestError(str(error)) from None


def fields_of(record: Record, edit: Edit) -> dict[str, object]:
    """Return the fields of a record that an edit sets by itself. Raises RequestError."""
    fields: dict[str, object] = {}
    match edit:
        case Relabel():
            fields = {"labels": _relabelled(record.labels, edit)}
        case SetFields():
            fields = dict(edit.fields)
        case ToggleSequential():
            fields = {"sequential": not record.sequential}
        case EditTrackers():
            fields = {"trackers": checked(edit.edit([list(urls) for urls in record.trackers]), record.trackers)}
        case AddPeers(peers):
            fields = {"peers": list(dict.fromkeys([*peers, *record.peers]))[:MAX_LINK_PEERS]}
        case Stop():
            fields = {"stopped": True, "started_now": False}
    return fields


def _relabelled(labels: list[str], edit: Relabel) -> list[str]:
    """Raises RequestError."""
    after = other_labels(edit.edit(list(labels)))
    with refused():
        check_labels(label for label in after if label not in labels)
    return after


def hops_after(record: Record, edit: SetHops) -> int:
    """Raises RequestError."""
    hops = edit.hops if edit.hops is not None else max(record.hops, edit.at_least or 0)
    if hops < record.hops and not edit.confirmed:
        raise RequestError(
            f"{hops} hops are fewer than the {record.hops} that it has, which others can use to find out who it "
            "belongs to: ask again with confirm_fewer_hops"
        )
    return hops
