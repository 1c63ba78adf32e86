"""Tasks of a py-ipv8 TaskManager that run until it ends."""

from collections.abc import Awaitable, Callable
from typing import Any

from ipv8.taskmanager import TaskManager


def register_endless(manager: TaskManager, name: str, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """Register a task that runs until the end; `register_task` would report it as stuck after a quarter of an hour."""
    task = manager.register_task(name, work, *arguments)
    task.interval = 1.0  # TaskManager._check_tasks does not report tasks with an interval
