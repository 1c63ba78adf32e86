"""Decides which torrents may run: the queue, the limits of seeding, room on the disk. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tunnel_pool.daemon.record import LimitMode, Record
from tunnel_pool.daemon.rules.room import Budget


class Activity(Enum):
    """Says what a torrent does, as far as the queue and its owner decide it."""

    STOPPED = "stopped"
    QUEUED = "queued"
    NO_ROOM = "no room"  # on its disk
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Holds the limits of the queue; None is no limit."""

    downloads: int | None = 5
    seeds: int | None = None
    ratio: float | None = None
    idle_min: float | None = None
    seeding_min: float | None = None


class View(NamedTuple):
    """Holds what has to be known of a torrent to say whether it may run."""

    record: Record
    finished: bool
    left_bytes: int  # of what is wanted
    is_waiting: bool  # for room on its disk
    ratio: float
    idle_s: float  # while it ran, the time since it last sent or received something
    seeding_s: float = 0.0  # how long it has run with all that is wanted there


def reached_limits(view: View, limits: QueueLimits) -> list[str]:
    """Return which limits of seeding a finished torrent has reached: the fields of its record that say their mode."""
    record = view.record
    kinds = (
        ("ratio_mode", view.ratio, record.ratio_limit, limits.ratio),
        ("idle_mode", view.idle_s / 60, record.idle_limit_min, limits.idle_min),
        ("seeding_mode", view.seeding_s / 60, record.seeding_limit_min, limits.seeding_min),
    )
    held = ((mode, value, _limit(getattr(record, mode), own, of_all)) for mode, value, own, of_all in kinds)
    return [mode for mode, value, limit in held if view.finished and limit is not None and value >= limit]


def _limit(mode: LimitMode, own: float, session: float | None) -> float | None:
    return {LimitMode.GLOBAL: session, LimitMode.SINGLE: own, LimitMode.UNLIMITED: None}[mode]


def plan(views: Iterable[View], limits: QueueLimits, budget: Budget) -> dict[str, Activity]:
    """Return what each torrent does, by infohash; those first in the queue run first, and get room on disks first."""
    activities: dict[str, Activity] = {}
    room = {False: limits.downloads, True: limits.seeds}
    for view in sorted(views, key=lambda view: view.record.position):
        activities[view.record.infohash] = activity = _activity(view, room[view.finished], budget)
        left = room[view.finished]
        if activity is Activity.RUNNING and left is not None and not view.record.started_now:
            room[view.finished] = left - 1
    return activities


def _activity(view: View, left: int | None, budget: Budget) -> Activity:
    if view.record.stopped:
        return Activity.STOPPED
    if left is not None and left <= 0 and not view.record.started_now:
        return Activity.QUEUED
    if not view.finished and not budget.allot(view.record.folder, view.left_bytes, view.is_waiting):
        return Activity.NO_ROOM
    return Activity.RUNNING


def moved(order: list[str], which: set[str], where: str) -> list[str]:
    """Return the queue's order after moving `which` to the `top`, `up`, `down` or to the `bottom`, in their order."""
    chosen = [name for name in order if name in which]
    others = [name for name in order if name not in which]
    if where == "top":
        return chosen + others
    if where == "bottom":
        return others + chosen
    result = order if where == "up" else order[::-1]
    result = list(result)
    for i in range(1, len(result)):
        if result[i] in which and result[i - 1] not in which:
            result[i - 1], result[i] = result[i], result[i - 1]
    return result if where == "up" else result[::-1]
