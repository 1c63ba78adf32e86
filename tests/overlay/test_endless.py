"""Tests that tasks registered as endless are not reported as stuck."""

import asyncio
import logging

from ipv8.taskmanager import MAX_TASK_AGE, TaskManager

from tunnel_pool.overlay.ground.endless import register_endless


async def test_an_endless_task_is_no_stuck_one(caplog):
    manager = TaskManager()
    register_endless(manager, "endless", asyncio.Event().wait)
    manager.register_task("stuck", asyncio.Event().wait)
    for task in manager._pending_tasks.values():
        task.start_time -= MAX_TASK_AGE + 1
    with caplog.at_level(logging.WARNING):
        manager._check_tasks()
    await manager.shutdown_task_manager()
    assert "stuck" in caplog.text
    assert "endless" not in caplog.text
