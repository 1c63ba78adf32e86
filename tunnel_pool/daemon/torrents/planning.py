"""What edits make of a torrent's record."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.hops import check_labels, other_labels
from tunnel_pool.daemon.rules.tiers import checked
from tunnel_pool.daemon.torrents.edits import (
    EditTrackers,
    Move,
    Relabel,
    Run,
    SetFields,
    SetHops,
    Stop,
    ToggleSequential,
)
from tunnel_pool.daemon.torrents.torrent import Torrent


@dataclass(slots=True)
class Plan:
    """Holds what edits make of a torrent: fields of its record, and what else is done."""

    torrent: Torrent
    hops: int
    fields: dict[str, Any]
    changes_session: bool = False
    is_said: bool = False  # whether its owner has said how many hops it has
    position: int | None = None
    move: Move | None = None
    run: Run | None = None


@contextmanager
def refused() -> Iterator[None]:
    """Turn the ValueError of a wrong hop count or label into a RequestError."""
    try:
        yield
    except ValueError as error:
        raise RequestError(str(error)) from None


def fields_of(record: Record, edit: Relabel | SetFields | ToggleSequential | EditTrackers | Stop) -> dict[str, object]:
    """Return the fields of a record that an edit sets. Raises RequestError."""
    match edit:
        case Relabel():
            return {"labels": _relabelled(record.labels, edit)}
        case SetFields():
            return dict(edit.fields)
        case ToggleSequential():
            return {"sequential": not record.sequential}
        case EditTrackers():
            return {"trackers": checked(edit.edit([list(urls) for urls in record.trackers]), record.trackers)}
        case Stop():
            return {"stopped": True, "started_now": False}


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
