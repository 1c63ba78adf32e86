"""Decides which child takes part in which hidden swarm: one at a time. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER, OWN_CIRCUITS


class SwarmOwners:
    """Knows the slot of each swarm, by infohash; a swarm stays where it is while that child runs."""

    def __init__(self) -> None:
        self.of: dict[bytes, int] = {}

    def assign(self, lanes: Mapping[bytes, Lane], running: Collection[int]) -> set[int]:
        """Give each swarm, by infohash, an owner among the running; returns the slots whose list has changed.

        Swarms whose owner is gone, and new ones, go to whoever has the fewest. Where there are so many that they are
        offered together (offers.py), those of one lane go to the same child as far as that has hardly more than others.
        Without a running child they wait for one.
        """
        before = self.of
        self.of = {infohash: before[infohash] for infohash in lanes if before.get(infohash, -1) in running}
        load = Counter(self.of.values())
        members = Counter((slot, lanes[infohash]) for infohash, slot in self.of.items())
        for infohash, lane in lanes.items():
            if infohash in self.of or not running:
                continue
            if len(self.of) < OWN_CIRCUITS * len(running):
                slot = min(running, key=lambda slot: (load[slot], slot))
            else:
                slot = min(
                    running,
                    key=lambda slot: (load[slot] // MOST_TOGETHER, members[slot, lane] == 0, load[slot], slot),
                )
            self.of[infohash] = slot
            load[slot] += 1
            members[slot, lane] += 1
        moved = {infohash for infohash in {*before, *self.of} if before.get(infohash) != self.of.get(infohash)}
        owners = {owner.get(infohash) for infohash in moved for owner in (before, self.of)}
        return {slot for slot in owners if slot is not None and slot in running}

    def give(self, infohashes: Collection[bytes], slot: int) -> set[int]:
        """Give these to the slot from now on; returns whose list has changed."""
        changed = {self.of[infohash] for infohash in infohashes if self.of.get(infohash, slot) != slot}
        self.of.update(dict.fromkeys(infohashes, slot))
        return changed | {slot} if changed else set()

    def swarms_of(self, slot: int) -> list[bytes]:
        return [infohash for infohash, owner in self.of.items() if owner == slot]
