"""Rate limits over all children of a node, in memory that they share with the main process.

The layout is in packet_engine/src/limits.rs. Words that this module writes take effect there with the next
datagram. The bytes that the children let go are read from the same memory.
"""

import mmap
import os
import time
from dataclasses import dataclass, field

from tunnel_pool.overlay.serving.rate_limits import Limits

VERSION = 1
UNLIMITED = (1 << 64) - 1
CLASSES = ("relayed", "exited", "own")
SLOTS = 256

_VERSION, _ANY, _MAX_DELAY, _BURST, _QUEUE_BYTES, _CIRCUIT, _BUCKETS, _WAITING = 0, 1, 2, 3, 4, 5, 8, 32
_COUNTED = _WAITING + SLOTS
_COUNTED_WORDS = 8
WORDS = _COUNTED + SLOTS * _COUNTED_WORDS
_NS = 1_000_000_000
_MASK_16 = 0xFFFF
SHOWN_MS = 1000  # for how long a status shows what a child said last


@dataclass(slots=True)
class Counted:
    """Counts the bytes that were let go, by class."""

    up: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    down: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))


class LimitsMemory:
    """Shares limits with the children by a file in memory; `fileno` is handed to them."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("tunnel-pool limits", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, 8 * WORDS)
        self._map = mmap.mmap(self._fd, 8 * WORDS)
        self._words = memoryview(self._map).cast("Q")
        self.set(Limits())
        self._words[_VERSION] = VERSION

    def fileno(self) -> int:
        return self._fd

    def set(self, limits: Limits) -> None:
        """Apply these limits from now on."""
        words = self._words
        words[_MAX_DELAY] = int(limits.max_delay_s * _NS)
        words[_BURST] = int(limits.burst_s * _NS)
        words[_QUEUE_BYTES] = limits.queue_bytes
        words[_CIRCUIT], words[_CIRCUIT + 1] = map(_word, limits.circuit)
        rates = [*limits.relayed, *limits.exited, *limits.own, *limits.total]
        for bucket, rate in enumerate(rates):
            words[_BUCKETS + 2 * bucket] = _word(rate)
        words[_ANY] = limits.are_any()

    def counted(self) -> Counted:
        """Return what all children let go."""
        words = self._words[_COUNTED:].tolist()
        sums = Counted()
        for place, name in enumerate(CLASSES):
            sums.up[name] = sum(words[2 * place :: _COUNTED_WORDS])
            sums.down[name] = sum(words[2 * place + 1 :: _COUNTED_WORDS])
        return sums

    def waiting(self) -> dict[str, int]:
        """Return the circuits that wait, by class, as each child said of late."""
        sums = dict.fromkeys(CLASSES, 0)
        now_ms = time.monotonic_ns() // 1_000_000
        for word in self._words[_WAITING : _WAITING + SLOTS]:
            if (now_ms - (word >> 48)) & _MASK_16 < SHOWN_MS:
                for place, name in enumerate(CLASSES):
                    sums[name] += word >> 16 * place & _MASK_16
        return sums

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self._fd)


def _word(rate: int | None) -> int:
    return UNLIMITED if rate is None else min(rate, UNLIMITED - 1)
