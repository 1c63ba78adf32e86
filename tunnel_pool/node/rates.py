"""Decides which limits hold now: the file's, its schedule's, or zero once the month's quota is spent. Pure."""

import datetime
from dataclasses import dataclass

from tunnel_pool.node.config import DAYS, NO_RATES, BothWays, Limits, Quota, Rates, Window
from tunnel_pool.overlay.serving import rate_limits

NOTHING = rate_limits.Rates(0, 0)
NAMES = ("relayed", "exited", "own", "total", "circuit")


def are_any(config: Limits) -> bool:
    """Return whether anything is limited at any hour."""
    rates = [config, *config.schedule]
    named = any(getattr(each, name) != NO_RATES for each in rates for name in NAMES)
    return named or config.quota is not None


def is_open(window: Window, now: datetime.datetime) -> bool:
    """Return whether a window of the schedule holds; one over midnight belongs to the day that it begins on."""
    time = now.time()
    today, yesterday = DAYS[now.weekday()], DAYS[now.weekday() - 1]
    if window.since < window.until:
        return today in window.days and window.since <= time < window.until
    return (today in window.days and time >= window.since) or (yesterday in window.days and time < window.until)


def limits_at(config: Limits, now: datetime.datetime, quota_spent: bool) -> rate_limits.Limits:
    """Return the limits of now: open windows replace what they name, the last one first; own traffic has no quota."""
    windows = [window for window in config.schedule if is_open(window, now)]
    held = {name: _latest([config, *windows], name) for name in NAMES}
    if quota_spent:
        held["relayed"] = held["exited"] = NOTHING
    return rate_limits.Limits(
        **held,
        max_delay_s=config.max_delay_ms / 1000,
        burst_s=config.burst_ms / 1000,
        queue_bytes=config.circuit_memory,
    )


def _latest(rates: list[Rates], name: str) -> rate_limits.Rates:
    ways: list[BothWays] = [getattr(each, name) for each in rates]
    up = [way.up for way in ways if way.up is not None]
    down = [way.down for way in ways if way.down is not None]
    return rate_limits.Rates(up[-1] if up else None, down[-1] if down else None)


def period_start(day: int, today: datetime.date) -> datetime.date:
    """Return when the quota's present month began."""
    if today.day >= day:
        return today.replace(day=day)
    return (today.replace(day=1) - datetime.timedelta(days=1)).replace(day=day)


@dataclass
class Usage:
    """Counts what was carried for others in the quota's month."""

    since: datetime.date
    up: int = 0
    down: int = 0

    def add(self, quota: Quota, up: int, down: int, today: datetime.date) -> None:
        start = period_start(quota.day, today)
        if start > self.since:
            self.since, self.up, self.down = start, 0, 0
        self.up += up
        self.down += down

    def of(self, quota: Quota) -> int:
        return {"up": self.up, "down": self.down, "both": self.up + self.down}[quota.counts]
