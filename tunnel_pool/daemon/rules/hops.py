"""Decides which hop count an added torrent gets: no way in may lose what its owner asked for. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from tunnel_pool.overlay.ground.config import MAX_HOPS

_LABEL = re.compile(r"hops:(.*)", re.IGNORECASE)


def checked_hops(value: object) -> int:
    """Return a hop count, given as a number or as its text. Raises ValueError."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) > MAX_HOPS:
        raise ValueError(f"{text[:20]!r} is no hop count: 0 (plain) to {MAX_HOPS}")
    return int(text)


def check_labels(labels: Iterable[str]) -> None:
    """Raises ValueError for what clients that list labels between commas can't show (Transmission's makeLabels)."""
    for label in labels:
        if not label.strip() or "," in label:
            raise ValueError(f"{label[:20]!r} is no label: it has no comma, and is not empty")


def hops_of_labels(labels: Iterable[str]) -> int | None:
    """Return the hop count of a label like `hops:2`, None without one. Raises ValueError for a wrong one, or two."""
    found = {checked_hops(match[1]) for label in labels if (match := _LABEL.fullmatch(label.strip()))}
    if len(found) > 1:
        raise ValueError(f"labels name several hop counts: {', '.join(map(str, sorted(found)))}")
    return found.pop() if found else None


def other_labels(labels: Iterable[str]) -> list[str]:
    """Return the labels without the one that is a hop count."""
    return [label for label in labels if not _LABEL.fullmatch(label.strip())]


@dataclass(frozen=True, slots=True)
class HopRules:
    """Decides hop counts by label and by folder, and by what holds without any."""

    default: int = 1
    by_label: Mapping[str, int] = field(default_factory=dict)
    by_folder: Mapping[str, int] = field(default_factory=dict)

    def hops(self, asked: int | None, labels: Iterable[str], folder: str) -> int:
        """Return the hop count `asked` for, or that of a `hops:` label; else that of the rules, labels before folders.

        Of several labels with rules, the highest hop count holds; of several folders, the innermost one's.
        Raises ValueError when `asked` and a label contradict each other.
        """
        labels = list(labels)
        said = hops_of_labels(labels)
        if asked is not None and said is not None and asked != said:
            raise ValueError(f"{asked} hops are asked for, but the label says {said}")
        if asked is not None or said is not None:
            return asked if asked is not None else said or 0
        by_label = [self.by_label[label] for label in labels if label in self.by_label]
        if by_label:
            return max(by_label)
        inside = [rule for rule in self.by_folder if PurePath(folder).is_relative_to(rule)]
        return self.by_folder[max(inside, key=lambda rule: len(PurePath(rule).parts))] if inside else self.default
