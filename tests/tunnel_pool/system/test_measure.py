"""Tests that our CPU meters agree with the kernel's own figures."""

import asyncio
import os
import time

import psutil
import pytest

from tests.worlds.network import until
from tunnel_pool.system.measure import CpuMeter, cpu_seconds


def test_the_seconds_of_a_process_are_those_that_it_says_itself():
    before_s = time.process_time()
    read_s = cpu_seconds(os.getpid())
    assert before_s <= read_s <= time.process_time()


async def test_a_process_that_is_gone_uses_nothing():
    process = await asyncio.create_subprocess_exec("sleep", "60")
    meter = CpuMeter()
    await until(lambda: cpu_seconds(process.pid) > 0)  # its clock moves once it has run
    meter.cores(process.pid, 0.0)
    process.kill()
    await process.wait()
    assert meter.cores(process.pid, 1.0) == 0.0
    with pytest.raises(psutil.NoSuchProcess):
        cpu_seconds(process.pid)
