"""Tasks of a py-ipv8 TaskManager that run until it ends."""

from collections.abc import Awaitable, Callable
from typing import Any

from ipv8.taskmanager import TaskManager


def register_endless(manager: TaskManager, name: str, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """As `register_task`, which after a quarter of an hour would take it for stuck, and say so again and again."""
    task = manager.register_task(name, work, *arguments)
    task.interval = 1.0  # what TaskManager._check_tasks looks at
