"""Tests how often a child is sent the list of its hidden swarms."""

import asyncio

import pytest

from tests.worlds.network import until
from tunnel_pool.pooled import swarm_lists
from tunnel_pool.pooled.swarm_lists import SwarmLists
from tunnel_pool.rpc.errors import CallError


@pytest.fixture
def told():
    """Return the list of calls that were made: the slot, and a future for the answer."""
    return []


@pytest.fixture
def lists(told):
    def tell(slot):
        told.append((slot, asyncio.get_running_loop().create_future()))
        return told[-1][1]

    return SwarmLists(tell, lambda: (0, 1))


async def test_however_often_a_list_changes_one_call_is_on_its_way(lists, told):
    for _ in range(500):
        lists.changed(0)
        lists.changed(1)
        lists.changed(7)  # of a child that is gone
    assert [slot for slot, _ in told] == [0, 1]
    told[0][1].set_result(None)
    await until(lambda: len(told) == 3)
    assert told[2][0] == 0
    told[2][1].set_result(None)
    await asyncio.sleep(0)
    lists.changed(0)
    assert [slot for slot, _ in told] == [0, 1, 0, 0]


async def test_a_child_that_was_not_told_is_told_again(lists, told, monkeypatch):
    monkeypatch.setattr(swarm_lists, "AGAIN_S", 0.01)
    lists.changed(1)
    told[0][1].set_exception(CallError("it does not answer"))
    await until(lambda: len(told) == 2)
    told[1][1].set_result(None)
    await asyncio.sleep(0.05)
    assert len(told) == 2
