"""Keeps a node to its limits: the schedule's, and the month's quota, which outlives restarts."""

import datetime
import logging
from pathlib import Path

import msgspec

from tunnel_pool.node.config import Limits
from tunnel_pool.node.rates import Usage, limits_at, period_start
from tunnel_pool.overlay.serving.limits import Counted, LimitsMemory
from tunnel_pool.overlay.serving.rate_limits import Limits as Held
from tunnel_pool.system.files import write_atomically

USAGE_FILE = "usage.json"
FOR_OTHERS = ("relayed", "exited")

logger = logging.getLogger(__name__)


class LimitsKeeper:
    """Keeps the limits to the schedule and the quota: call `step` every second and `save` now and then."""

    def __init__(self, config: Limits, memory: LimitsMemory, state_dir: Path, now: datetime.datetime) -> None:
        self.config = config
        self.memory = memory
        self.held: Held | None = None
        self._path = state_dir / USAGE_FILE
        self._seen = self._for_others(memory.counted())
        self.usage = self._read(now.date())

    def quota_left(self) -> int | None:
        """Return how many bytes are left of the quota, None without one."""
        quota = self.config.quota
        return None if quota is None else max(0, quota.bytes - self.usage.of(quota))

    @property
    def is_spent(self) -> bool:
        return self.quota_left() == 0

    def step(self, now: datetime.datetime) -> None:
        """Add what was carried to the quota's usage, and apply the limits of this hour."""
        counted = self._for_others(self.memory.counted())
        up, down = (new - before for new, before in zip(counted, self._seen, strict=True))
        self._seen = counted
        if self.config.quota is not None:
            self.usage.add(self.config.quota, up, down, now.date())
        limits = limits_at(self.config, now, self.is_spent)
        if limits != self.held:
            if self.is_spent:
                logger.warning("This month's quota is spent: nothing is carried for others until it begins anew")
            self.held = limits
            self.memory.set(limits)

    def save(self) -> None:
        """Keep the usage of the quota; a full disk costs the count of the last minutes, no more."""
        if self.config.quota is None:
            return
        try:
            write_atomically(self._path, msgspec.json.encode(self.usage))
        except OSError as error:
            logger.warning("The quota's usage can't be kept in %s: %s", self._path, error.strerror)

    def _read(self, today: datetime.date) -> Usage:
        day = self.config.quota.day if self.config.quota is not None else 1
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Usage)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("What was used of the quota is forgotten, %s can't be read: %s", self._path, error)
        return Usage(period_start(day, today))

    @staticmethod
    def _for_others(counted: Counted) -> tuple[int, int]:
        return sum(counted.up[name] for name in FOR_OTHERS), sum(counted.down[name] for name in FOR_OTHERS)
