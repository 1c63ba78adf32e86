import pytest

from tunnel_pool.pool.policy import (
    EXIT_GRACE_S,
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    MAX_RESTART_DELAY_S,
    MAX_START_FAILURES,
    MAX_STARVED_S,
    STABLE_S,
    START_TIMEOUT_S,
    ChildState,
    Kill,
    Load,
    PoolPolicy,
    RequestExit,
    SendHeartbeat,
    Spawn,
    least_loaded,
    restart_delay_s,
    share_out,
    surplus,
)


def policy(slots=1):
    made = PoolPolicy()
    made.open_slots(range(slots), 0)
    return made


def decide_until(made, start_s, end_s):
    """Decide as often as the pool does, and return every command with its time."""
    times = [start_s + i / 10 for i in range(round((end_s - start_s) * 10) + 1)]
    return [(now_s, command) for now_s in times for command in made.decide(now_s)]


def running(now_s=0.0):
    made = policy()
    made.decide(now_s)
    made.created(0, now_s)
    return made


def state(made):
    return made.slots[0].state


def test_every_slot_is_spawned_once():
    made = policy(3)
    assert made.decide(0) == [Spawn(0), Spawn(1), Spawn(2)]
    assert made.decide(0.1) == []


def test_heartbeats_at_an_interval_one_at_a_time():
    made = running()
    assert made.decide(HEARTBEAT_INTERVAL_S - 0.01) == []
    assert made.decide(HEARTBEAT_INTERVAL_S) == [SendHeartbeat(0)]
    assert made.decide(HEARTBEAT_INTERVAL_S + 0.5) == []
    made.heartbeat_answered(0, 2)
    assert made.decide(2 + HEARTBEAT_INTERVAL_S) == [SendHeartbeat(0)]


def test_a_child_that_hangs_is_asked_then_killed_then_replaced():
    made = running()
    (sent_s, sent), (asked_s, asked), (killed_s, killed) = decide_until(made, 0, 30)
    assert (sent_s, sent) == (HEARTBEAT_INTERVAL_S, SendHeartbeat(0))
    assert asked_s == pytest.approx(sent_s + HEARTBEAT_TIMEOUT_S)
    assert isinstance(asked, RequestExit)
    assert "heartbeat" in asked.reason
    assert (killed_s, killed) == (pytest.approx(asked_s + EXIT_GRACE_S), Kill(0))
    made.ended(0, "killed", 30)
    assert state(made) is ChildState.WAITING
    assert made.decide(30 + restart_delay_s(1)) == [Spawn(0)]
    assert made.slots[0].restarts == 1


@pytest.mark.parametrize(
    ("share", "asked_after_s"),
    [(0.5, 2 * HEARTBEAT_TIMEOUT_S), (1.0, HEARTBEAT_TIMEOUT_S + MAX_STARVED_S)],  # of the time without a core
)
def test_a_child_that_gets_no_core_has_longer_to_answer_but_not_for_ever(share, asked_after_s):
    made = running()
    commands = []
    for tick in range(1000):
        now_s = tick / 10
        starved_s = share * (now_s - HEARTBEAT_INTERVAL_S)
        commands += [(now_s, command) for command in made.decide(now_s, starved_s=lambda slot, so=starved_s: so)]
    (sent_s, _), (asked_s, asked), *_ = commands
    assert isinstance(asked, RequestExit)
    assert asked_s - sent_s == pytest.approx(asked_after_s, abs=0.11)


def test_a_busy_main_process_does_not_blame_its_children():
    made = running()
    assert decide_until(made, 0, 1) == [(1, SendHeartbeat(0))]
    assert made.decide(60) == []
    made.heartbeat_answered(0, 60)
    assert decide_until(made, 60, 61) == [(61, SendHeartbeat(0))]


def test_a_hang_is_mended_within_ten_seconds():
    """A stopped child is replaced within ten seconds, without the time that a spawn takes."""
    assert HEARTBEAT_INTERVAL_S + HEARTBEAT_TIMEOUT_S + EXIT_GRACE_S + restart_delay_s(1) < 8


def test_the_delay_grows_with_quick_deaths_and_shrinks_after_a_stable_run():
    made = running()
    delays = []
    now_s = 1.0
    for _ in range(10):
        made.ended(0, "crash", now_s)
        delays.append(made.slots[0].spawn_at_s - now_s)
        now_s = made.slots[0].spawn_at_s
        assert made.decide(now_s) == [Spawn(0)]
        made.created(0, now_s)
    assert delays == sorted(delays)
    assert delays[-1] == MAX_RESTART_DELAY_S
    made.ended(0, "crash", now_s + STABLE_S)
    assert made.slots[0].spawn_at_s - now_s - STABLE_S == restart_delay_s(0)


def test_a_death_noticed_by_its_streams_first_is_a_failed_start_too():
    made = policy()
    now_s = 0.0
    for _ in range(MAX_START_FAILURES):
        made.decide(now_s)
        made.end(0, "end of file", now_s)
        made.ended(0, "exit code 1", now_s)
        now_s += MAX_RESTART_DELAY_S
    assert state(made) is ChildState.FAILED


def test_what_cannot_start_is_given_up_with_the_reason():
    made = policy()
    now_s = 0.0
    for attempt in range(MAX_START_FAILURES):
        assert made.decide(now_s) == [Spawn(0)], attempt
        made.ended(0, f"attempt {attempt}", now_s)
        now_s += MAX_RESTART_DELAY_S
    assert state(made) is ChildState.FAILED
    assert made.slots[0].why == f"attempt {MAX_START_FAILURES - 1}"
    assert made.decide(now_s + 9999) == []


def test_a_child_that_says_it_cannot_start_is_not_tried_again():
    made = policy()
    made.decide(0)
    made.cannot_start(0, "port in use")
    made.end(0, "port in use", 0)
    made.ended(0, "ended", 1)
    assert state(made) is ChildState.FAILED
    assert made.slots[0].why == "port in use"


def test_a_child_that_never_gets_ready_is_ended():
    made = policy()
    made.decide(0)
    assert made.decide(START_TIMEOUT_S - 0.1) == []
    (command,) = made.decide(START_TIMEOUT_S)
    assert isinstance(command, RequestExit)
    made.ended(0, "killed", START_TIMEOUT_S + 2)
    assert made.slots[0].start_failures > 0


def test_a_start_that_works_forgives_failed_ones():
    made = policy()
    made.decide(0)
    made.ended(0, "crash", 0)
    made.decide(10)
    made.created(0, 10)
    assert made.slots[0].start_failures == 0


def test_a_broken_stream_ends_the_child_once():
    made = running()
    assert made.end(0, "not a frame", 5) == RequestExit(0, "not a frame")
    assert made.end(0, "again", 5) is None


def test_stop_ends_everything_and_spawns_nothing():
    made = policy(2)
    made.decide(0)
    made.created(0, 0)
    made.ended(1, "crash", 0)
    made.stop(1)
    assert made.slots[1].state is ChildState.STOPPED
    assert made.decide(1) == [RequestExit(0, "the pool stops")]
    made.ended(0, "ended", 2)
    assert state(made) is ChildState.STOPPED
    assert made.decide(99) == []


def test_late_news_of_an_ended_child_changes_nothing():
    made = running()
    made.end(0, "gone", 1)
    made.created(0, 2)
    assert state(made) is ChildState.ENDING


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([], None),
        ([Load(3, 0, 7)], 7),
        ([Load(1, 0, 0), Load(0, 99, 1)], 1),
        ([Load(1, 5, 0), Load(1, 4, 1)], 1),
        ([Load(1, 5, 1), Load(1, 5, 0)], 0),
    ],
)
def test_least_loaded(loads, chosen):
    assert least_loaded(loads) == chosen


@pytest.mark.parametrize(
    ("wanted", "have", "expected", "chosen"),
    [
        (8, {0: 0}, 0, [0] * 8),
        (8, {0: 0}, 1, [0] * 4),
        (8, {0: 4, 1: 0}, 0, [1] * 4),
        (8, {0: 8, 1: 0}, 0, [1] * 4),  # child 1 is new, and child 0 has taken over its circuits
        (8, {0: 4, 1: 4, 2: 0}, 0, [2] * 2),  # it came late
        (8, {0: 4, 1: 4, 2: 2}, 0, []),
        (7, {0: 2, 1: 2}, 0, [0, 1, 0]),
        (7, {0: 2, 1: 2}, 1, [0, 1]),
        (1, {0: 0, 1: 0}, 0, [0]),
        (1, {0: 0}, 5, [0]),
        (1, {0: 1, 1: 0}, 0, []),
        (0, {0: 0, 1: 3}, 0, []),
    ],
)
def test_circuits_are_shared_out_evenly(wanted, have, expected, chosen):
    assert share_out(wanted, have, expected) == chosen


@pytest.mark.parametrize(
    ("wanted", "have", "dropped"),
    [
        (8, {0: 4, 1: 4}, {}),
        (8, {0: 8, 1: 4}, {0: 4}),
        (8, {0: 4, 1: 4, 2: 2}, {0: 1, 1: 1}),
        (8, {0: 64, 1: 64, 2: 64}, {0: 61, 1: 61, 2: 61}),
        (1, {0: 1, 1: 1}, {}),  # each has its share, and one more is no harm
        (0, {0: 3}, {0: 3}),
        (0, {}, {}),
    ],
)
def test_what_is_more_than_wanted_goes_where_there_is_most(wanted, have, dropped):
    assert surplus(wanted, have) == dropped


def test_what_is_shared_out_is_not_surplus():
    for wanted in range(20):
        have = {0: wanted, 1: 0, 2: 0}
        for slot in share_out(wanted, have, 0):
            have[slot] += 1
        for slot, number in surplus(wanted, have).items():
            have[slot] -= number
        assert share_out(wanted, have, 0) == []
        assert sum(have.values()) >= wanted
