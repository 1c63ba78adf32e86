"""Tests the states of a torrent: their table, the commands to libtorrent, and that only its own methods change it."""

import ast
import dataclasses
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.daemon.rules import life
from tunnel_pool.daemon.rules.life import (
    IMPOSSIBLE,
    TABLE,
    Check,
    Event,
    Facts,
    ImpossibleEventError,
    Life,
    Place,
    State,
    Trouble,
)
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.torrents.torrent import Torrent

NO_TORRENTS = {"self", "rule", "article", "parameters", "record"}  # which have fields of the same names
DAEMON = Path(life.__file__).parent.parent
SOUND = (Place.IN_SESSION, Trouble.NONE, Check.NONE)
NOTHING = Facts(0.0, False, False, False, False, False, False, True)

facts = st.builds(Facts, st.floats(0, 100), *[st.booleans()] * 7)


def states_of(one):
    return one.place, one.trouble, one.check


def after(states, event):
    one = Life(*states)
    one.happened(event, "why")
    return states_of(one)


def test_the_picture_in_the_docstring_is_the_table():
    rows = ((type(before).__name__.lower(), before, event, after) for (before, event), after in TABLE.items())
    picture = "\n".join(
        f"    {kind:9} {before.value:17} {event.value:16} -> {after.value}" for kind, before, event, after in rows
    )
    assert picture in life.__doc__


def test_there_is_a_way_out_of_each_state_that_can_be_reached():
    """Seen from the end: SOUND is reached from every state that is reached from SOUND."""
    reached, queue, leads = {SOUND}, deque([SOUND]), {}
    while queue:
        states = queue.popleft()
        for event in Event:
            if (states[0], event) in IMPOSSIBLE:
                continue
            following = after(states, event)
            leads.setdefault(following, set()).add(states)
            if following not in reached:
                reached.add(following)
                queue.append(following)
    assert {part for states in reached for part in states} == {*Place, *Trouble, *Check}
    comes_back, queue = {SOUND}, deque([SOUND])
    while queue:
        for before in leads[queue.popleft()] - comes_back:
            comes_back.add(before)
            queue.append(before)
    assert comes_back == reached


def test_each_event_leads_somewhere():
    assert {event for _, event in TABLE} == set(Event)


@given(st.lists(st.tuples(st.sampled_from(Event), st.sampled_from(Activity), facts), max_size=30))
def test_whatever_happens_libtorrent_is_asked_for_nothing_that_it_can_not_do(happenings):
    one = Life()
    for event, turn, seen in happenings:
        one.turn = turn
        before = states_of(one)
        try:
            if event is Event.FAILED_FOR_NOW:
                one.happened(event, "why", again_s=50.0)
            else:
                one.happened(event, "why")
        except ImpossibleEventError:
            assert (before[0], event) in IMPOSSIBLE
            assert states_of(one) == before
        orders = one.orders(seen)
        assert (orders is None) is (one.place is Place.BETWEEN_SESSIONS)
        assert bool(one.why) is (one.trouble is not Trouble.NONE)
        assert one.is_to_be_tried(50.0) is (one.trouble is Trouble.FAILED_FOR_NOW)
        assert not one.is_to_be_tried(49.0)
        state = one.state(seen)
        assert (state in (State.FAILED, State.MISSING)) is bool(one.why)
        if orders is None:
            continue
        if orders.may_meet:
            assert one.turn is Activity.RUNNING
            assert not any((one.why, seen.is_bound_elsewhere, seen.takes_over, seen.is_untouched))
        if orders.looks_first:
            assert (seen.is_untouched, one.turn, one.why) == (True, Activity.RUNNING, "")
        if orders.runs and not orders.checks_only:
            assert orders.may_meet
        if one.why and one.check is Check.NONE:
            assert not orders.runs


@pytest.mark.parametrize(
    ("happened", "changes", "runs", "checks_only", "state"),
    [
        ([], {}, True, False, State.DOWNLOADING),
        ([], {"is_finished": True}, True, False, State.SEEDING),
        ([], {"has_way": False}, False, False, State.DOWNLOADING),
        ([], {"has_way": False, "is_checking": True}, True, False, State.CHECKING),
        ([], {"takes_over": True}, False, False, State.DOWNLOADING),
        ([], {"takes_over": True, "is_checking": True}, True, True, State.CHECKING),
        ([], {"is_untouched": True}, False, False, State.DOWNLOADING),
        ([], {"is_untouched": True, "is_checking": True}, True, True, State.CHECKING),
        ([], {"is_bound_elsewhere": True}, False, False, State.MOVING),
        ([], {"is_settling": True}, True, False, State.MOVING),
        ([Event.FAILED], {}, False, False, State.FAILED),
        ([Event.FAILED, Event.FORGIVEN], {}, True, False, State.DOWNLOADING),
        ([Event.FAILED, Event.TRIED_AGAIN], {}, False, False, State.FAILED),
        ([Event.FAILED_FOR_NOW, Event.TRIED_AGAIN], {}, True, False, State.DOWNLOADING),
        ([Event.LOST], {}, False, False, State.MISSING),
        ([Event.LOST, Event.FORGIVEN], {}, False, False, State.MISSING),
        ([Event.LOST, Event.FAILED], {}, False, False, State.MISSING),
        ([Event.LOST, Event.VERIFY_BEGUN], {}, True, False, State.CHECKING),
        ([Event.VERIFY_BEGUN, Event.FAILED], {}, True, True, State.FAILED),
        ([Event.VERIFY_BEGUN, Event.HALTED], {}, False, False, State.FAILED),
        ([Event.VERIFY_BEGUN, Event.ROOM_RAN_OUT], {}, False, False, State.NO_ROOM),
    ],
)
def test_what_libtorrent_is_to_do(happened, changes, runs, checks_only, state):
    one = Life(turn=Activity.RUNNING)
    for event in happened:
        one.happened(event, "why")
    orders = one.orders(NOTHING._replace(**changes))
    assert (orders.runs, orders.checks_only) == (runs, checks_only)
    assert one.state(NOTHING._replace(**changes)) is state


def test_a_torrent_that_is_stopped_or_held_runs_only_to_be_verified():
    stopped, held = Life(), Life(turn=Activity.RUNNING, held_until_s=10.0)
    assert not stopped.orders(NOTHING).runs
    assert not held.orders(NOTHING).runs
    assert held.orders(NOTHING._replace(now_s=10.0)).runs
    for one in (stopped, held):
        one.happened(Event.VERIFY_BEGUN)
        assert one.orders(NOTHING._replace(is_untouched=True)) == (True, True, False, False)


def _writes(path):
    """Yield the attributes of others that a module assigns."""
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for each in ast.walk(target) if target is not None else ():
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    yield ast.unparse(each.value), each.attr


def test_a_torrent_changes_by_its_own_methods_alone():
    names = {each.name for kind in (Torrent, Life) for each in dataclasses.fields(kind)}
    assert len(dataclasses.fields(Torrent)) <= 25
    home = DAEMON / "torrents" / "torrent.py"
    assert ("self", "record") in set(_writes(home))
    found = [
        f"{path.relative_to(DAEMON)}: {of}.{name}"
        for path in DAEMON.rglob("*.py")
        if path != home
        for of, name in _writes(path)
        if name in names and of not in NO_TORRENTS
    ]
    assert not found
