"""Tells what has changed since a client last asked: the answers of qBittorrent's sync/maindata. Pure."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

Table = Mapping[str, object]  # rows by their keys


class Deltas:
    """Remembers what one client was told last, and tells it of changes alone."""

    def __init__(self) -> None:
        self._id = random.randrange(1, 1 << 30)  # no id of an earlier run is taken for one of ours
        self._tables: dict[str, Table] = {}
        self._lists: dict[str, Sequence[str]] = {}
        self._state: Table = {}

    def answer(
        self, known_id: int, tables: Mapping[str, Table], lists: Mapping[str, Sequence[str]], state: Table
    ) -> dict[str, object]:
        """Return the answer for a client whose last answer had this id, 0 for none.

        Of a row that has fields, those that have changed are told; another row is told whole. What is gone from a
        table or list is named in `<its name>_removed`. A client that missed an answer is told everything.
        """
        is_whole = known_id == 0 or known_id != self._id
        if is_whole:
            self._tables, self._lists, self._state = {}, {}, {}
        self._id += 1
        answer: dict[str, object] = {"rid": self._id, **({"full_update": True} if is_whole else {})}
        for name, rows in tables.items():
            before = self._tables.get(name, {})
            answer[name] = {key: _changes(before.get(key), row) for key, row in rows.items() if before.get(key) != row}
            answer[f"{name}_removed"] = [key for key in before if key not in rows]
        for name, items in lists.items():
            known, now = set(self._lists.get(name, ())), set(items)
            answer[name] = [item for item in items if item not in known]
            answer[f"{name}_removed"] = sorted(known - now)
        answer["server_state"] = _changes(self._state, state)
        self._tables, self._lists, self._state = dict(tables), dict(lists), state
        return {name: value for name, value in answer.items() if value}


def _changes(before: Any, now: Any) -> Any:
    """Return the fields of a row that differ from an older one's; all of it, if there is none."""
    if not isinstance(before, Mapping):
        return now
    return {name: value for name, value in now.items() if name not in before or before[name] != value}
