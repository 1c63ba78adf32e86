"""The guards of a client (overlay/paths/guards.py), kept over restarts in its state directory."""

from pathlib import Path

from tunnel_pool.kept_file import keep_file, restore_file
from tunnel_pool.overlay.paths.guards import Guards


def read_guards(path: Path, count: int) -> Guards:
    """Return the guards of the last run; new ones are chosen where that file is not there or can't be read."""
    guards = Guards(count=count)
    restore_file(path, guards.restore, "The first hops of the last run can't be read, others are chosen")
    return guards


async def keep_guards(guards: Guards, path: Path) -> None:
    """Keep the file up to date, for ever."""
    lost = "The first hops of circuits are not kept over a restart"
    await keep_file(path, guards.identities, guards.encode, lost)
