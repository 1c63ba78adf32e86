"""Tests which silent circuits are pinged, and which are declared dead."""

from tunnel_pool.overlay.clients.liveness import ANSWER_S, PING_AGAIN_S, SILENT_S, Carried, Liveness

NOW_S = 1000.0
STEP_S = 0.25


def watched(sent_bytes, heard_s, seconds, liveness=None, received_bytes=lambda after_s: 0):
    """Return when a circuit is pinged and when it is given up, of what is looked at each STEP_S.

    `sent_bytes`, `heard_s` and `received_bytes` say what holds after so many seconds.
    """
    liveness = liveness or Liveness()
    pings, deaths = [], []
    for step in range(int(seconds / STEP_S)):
        after_s = step * STEP_S
        found = liveness.look(
            [Carried(7, sent_bytes(after_s), received_bytes(after_s), NOW_S + heard_s(after_s))], NOW_S + after_s
        )
        pings += [after_s] * len(found.to_ping)
        deaths += [after_s] * len(found.dead)
    return pings, deaths


def test_a_circuit_that_answers_is_left_alone():
    assert watched(lambda s: int(s * 1000), lambda s: s - 0.2, 60) == ([], [])


def test_an_idle_circuit_is_left_to_py_ipv8():
    assert watched(lambda s: 100, lambda s: 0, 60) == ([], [])


def test_what_is_sent_and_not_answered_has_the_end_asked_twice_or_thrice_and_the_circuit_given_up():
    pings, deaths = watched(lambda s: int(s * 1000), lambda s: 0, 8)
    assert pings[0] == STEP_S + SILENT_S
    assert pings[1] - pings[0] == PING_AGAIN_S
    assert deaths[0] == pings[0] + ANSWER_S


def test_who_brought_much_until_just_now_is_asked_although_nothing_is_sent():
    pings, deaths = watched(lambda s: 100, lambda s: min(s, 3), 12, received_bytes=lambda s: int(min(s, 3) * 100_000))
    assert pings[0] == 3 + SILENT_S
    assert deaths[0] == pings[0] + ANSWER_S


def test_looks_may_be_so_close_that_hardly_anything_came_between_the_last_two():
    liveness = Liveness()
    for after_s, received_bytes in ((0, 0), (0.25, 100_000), (0.26, 100_100)):
        liveness.look([Carried(7, 0, received_bytes, NOW_S + after_s)], NOW_S + after_s)
    last = Carried(7, 0, 100_100, NOW_S + 0.26)
    assert not liveness.look([last], NOW_S + 0.26 + SILENT_S - STEP_S).to_ping
    assert liveness.look([last], NOW_S + 0.26 + SILENT_S).to_ping == [7]


def test_what_came_long_ago_counts_no_more():
    liveness = Liveness()
    for after_s, received_bytes in ((0, 0), (1, 100_000), (9, 100_100)):
        liveness.look([Carried(7, 0, received_bytes, NOW_S + after_s)], NOW_S + after_s)
    assert not liveness.look([Carried(7, 0, 100_100, NOW_S + 9)], NOW_S + 9 + SILENT_S).to_ping


def test_who_brought_much_and_answers_is_asked_no_more():
    pings, deaths = watched(
        lambda s: 100, lambda s: min(s, 3) if s < 6 else 6, 30, received_bytes=lambda s: int(min(s, 3) * 100_000)
    )
    assert len(pings) == 1
    assert not deaths


def test_an_answer_to_a_ping_is_enough():
    pings, deaths = watched(lambda s: int(s * 1000), lambda s: s // 5 * 5 + 0.5, 60)
    assert 11 <= len(pings) <= 24
    assert not deaths


def test_the_last_cell_that_was_sent_counts_as_well():
    assert watched(lambda s: 100 + (s > 1), lambda s: 0, 12)[1]


def test_a_circuit_to_the_same_exit_can_be_asked_at_once():
    liveness = Liveness()
    watched(lambda s: 100, lambda s: 0, 1, liveness)
    liveness.ask(7, NOW_S + 1)
    liveness.ask(8, NOW_S + 1)  # of which nothing is known
    found = liveness.look([Carried(7, 100, 0, NOW_S)], NOW_S + 1)
    assert found.to_ping == [7]
    assert not found.silent, "else two circuits to one exit would have each other asked for ever"
    assert liveness.look([Carried(7, 100, 0, NOW_S)], NOW_S + 1 + ANSWER_S).dead == [7]


def test_a_circuit_that_falls_silent_is_named_once():
    liveness, silent = Liveness(), []
    for step in range(20):
        found = liveness.look([Carried(7, step * 1000, 0, NOW_S)], NOW_S + step * STEP_S)
        silent += [step * STEP_S] * len(found.silent)
    assert silent == [STEP_S + SILENT_S]
