from tunnel_pool.overlay.ground.pacing import FIRST_DELAY_S, MAX_DELAY_S, Backoff, Newest, Recent


def test_the_delay_doubles_up_to_its_limit():
    backoff, now_s, delays = Backoff(), 100.0, []
    for _ in range(12):
        assert backoff.is_due(now_s)
        backoff.failed(now_s)
        before_s = now_s
        while not backoff.is_due(now_s):
            now_s += FIRST_DELAY_S
        delays.append(now_s - before_s)
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert delays[-1] == MAX_DELAY_S


def test_a_batch_of_failures_counts_once():
    backoff = Backoff()
    for _ in range(8):
        backoff.failed(100.0)
    assert not backoff.is_due(100.0)
    assert backoff.is_due(100.0 + FIRST_DELAY_S)


def test_a_success_starts_anew():
    backoff = Backoff()
    backoff.failed(1.0)
    backoff.succeeded()
    assert backoff.is_due(1.0)
    backoff.failed(1.0)
    assert backoff.is_due(1.0 + FIRST_DELAY_S)


def test_who_did_not_answer_is_suspected_for_a_while_or_until_it_does():
    suspects = Recent[bytes](60.0)
    suspects.add(b"a", 1.0)
    suspects.add(b"b", 1.0)
    assert suspects.has(b"a", 2.0)
    suspects.clear(b"a")
    assert not suspects.has(b"a", 2.0)
    assert not suspects.has(b"b", 1.0 + 60.0)


def test_the_newest_entries_stay_and_what_is_set_again_is_new():
    newest = Newest(2)
    newest["a"], newest["b"] = 1, 2
    newest["a"] = 3
    newest["c"] = 4
    assert list(newest.items()) == [("a", 3), ("c", 4)]
