"""Tests the pure parts of qBittorrent's API: deltas, lists, categories and tags, logins, preferences."""

import contextlib
import copy
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.daemon.errors import ConflictError, RequestError, refuse_some
from tunnel_pool.daemon.record import LimitMode
from tunnel_pool.daemon.server.logins import IDLE_S, MOST, Logins
from tunnel_pool.daemon.server.qbittorrent import categories, preferences
from tunnel_pool.daemon.server.qbittorrent.deltas import Deltas
from tunnel_pool.daemon.server.qbittorrent.editing import share_limits, speed_limit
from tunnel_pool.daemon.server.qbittorrent.listing import STATUSES, listed, paged
from tunnel_pool.daemon.server.qbittorrent.words import Words
from tunnel_pool.daemon.storage.settings import Settings

PORT = 6881

rows = st.dictionaries(st.sampled_from("abc"), st.fixed_dictionaries({"x": st.integers(0, 2), "y": st.integers(0, 2)}))
tags = st.lists(st.sampled_from("tuv"), unique=True)
states = st.tuples(rows, tags, st.fixed_dictionaries({"speed": st.integers(0, 2)}))


def applied(client, answer):
    """Return what a client knows after an answer, as qBittorrent's own page applies it."""
    if answer.get("full_update"):
        client = {"rows": {}, "tags": set(), "state": {}}
    client = copy.deepcopy(client)
    for key, fields in answer.get("rows", {}).items():
        client["rows"].setdefault(key, {}).update(fields)
    for key in answer.get("rows_removed", ()):
        del client["rows"][key]
    client["tags"] |= set(answer.get("tags", ()))
    client["tags"] -= set(answer.get("tags_removed", ()))
    client["state"].update(answer.get("server_state", {}))
    return client


@given(st.lists(st.tuples(states, st.booleans()), max_size=8))
def test_a_client_that_applies_deltas_knows_what_there_is_though_answers_get_lost(steps):
    deltas, client, rid = Deltas(), None, 0
    for (rows, tags, state), is_lost in steps:
        answer = deltas.answer(rid, {"rows": rows}, {"tags": tags}, state)
        if is_lost:
            continue
        client, rid = applied(client, answer), answer["rid"]
        assert client == {"rows": rows, "tags": set(tags), "state": state}


def test_an_answer_in_which_nothing_has_changed_has_its_id_alone():
    deltas = Deltas()
    known = {"rows": {"a": {"x": 1}}}, {"tags": ["t"]}, {"speed": 1}
    first = deltas.answer(0, *known)
    assert first["full_update"]
    assert deltas.answer(first["rid"], *known) == {"rid": first["rid"] + 1}


def row(state, **more):
    usual = {"state": state, "category": "", "tags": "", "private": False, "dlspeed": 0, "upspeed": 0}
    return {**usual, **more}


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("", {"uploading", "stalledDL", "stoppedUP", "error"}),
        ("seeding", {"uploading"}),
        ("completed", {"uploading", "stoppedUP"}),
        ("stopped", {"stoppedUP"}),
        ("downloading", {"stalledDL"}),
        ("stalled", {"stalledDL"}),
        ("errored", {"error"}),
        ("active", {"uploading"}),
        ("no such status", {"uploading", "stalledDL", "stoppedUP", "error"}),
    ],
)
def test_a_status_finds_the_torrents_that_are_in_it(status, found):
    all_rows = [row(state) for state in ("uploading", "stalledDL", "stoppedUP", "error")]
    assert {each["state"] for each in listed(all_rows, status)} == found
    assert status in STATUSES or len(found) == len(all_rows)


def test_lists_are_chosen_by_category_and_tag_sorted_and_cut():
    a, b, c = (
        row("uploading", name=name, category=name[0], tags="hops:1, x" if name == "ab" else "")
        for name in ("ab", "b", "c")
    )
    assert listed([a, b, c], category="a") == [a]
    assert listed([a, b, c], tag="x") == [a]
    assert listed([a, b, c], tag="") == [b, c]
    assert paged([b, a, c], "name") == [a, b, c]
    assert paged([b, a, c], "name", reverse=True, limit=2) == [c, b]
    assert paged([a, b, c], offset=-1) == [c]
    assert paged([a, b, c], limit=1, offset=1) == [b]
    with pytest.raises(RequestError, match="sort"):
        paged([a], "no such field")


CATEGORIES = {"tv": "/tv", "films": ""}


def test_a_category_is_a_label_that_is_known_as_one():
    labels = ["x", "films", "tv"]
    assert categories.category_of(labels, CATEGORIES) == "films"
    assert categories.tags_of(labels, 2, CATEGORIES) == ["hops:2", "tv", "x"]
    assert categories.with_category(labels, "tv", CATEGORIES) == ["tv", "x"]
    assert categories.with_category(["x", "tv"], "", CATEGORIES) == ["x"]
    assert categories.known_tags(["y", "tv"], [(labels, 0)], CATEGORIES) == [
        "hops:0",
        "hops:1",
        "hops:2",
        "hops:3",
        "x",
        "y",
    ]


@pytest.mark.parametrize("name", ["a,b", "a\\b", 'a"b', "/a", "a/", "a//b", "", "a\nb", "x" * 300])
def test_a_category_has_no_name_that_clients_could_not_tell_apart(name):
    with pytest.raises(ConflictError):
        categories.checked_category(name)


def test_hop_counts_are_tags_and_no_categories():
    assert categories.split_tags(["x", "hops:2"]) == (["x"], 2)
    with pytest.raises(ConflictError, match="several"):
        categories.split_tags(["hops:1", "hops:2"])
    with pytest.raises(ConflictError):
        categories.split_tags(["hops:9"])
    with pytest.raises(ConflictError, match="tag"):
        categories.checked_category("hops:1")


def test_a_login_lasts_while_it_is_used_and_many_more_end_the_oldest():
    logins = Logins()
    first, second = logins.begin(0.0), logins.begin(1.0)
    assert logins.goes_on(first, IDLE_S - 1)
    assert not logins.goes_on(second, IDLE_S + 1)
    assert logins.goes_on(first, 2 * IDLE_S - 2)
    assert not logins.goes_on("", 0.0)
    for _ in range(MOST):
        logins.begin(2 * IDLE_S - 2)
    assert not logins.goes_on(first, 2 * IDLE_S - 2)


def test_sending_back_what_was_shown_changes_nothing():
    settings = Settings(folder="/f", alt_speed_time_begin=75)
    shown = preferences.shown(settings, PORT)
    assert preferences.changed(settings, json.dumps(shown), PORT)[:2] == (settings, [])
    assert set(preferences.SETTABLE) <= set(shown)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"dl_limit": 2_000_000}, {"speed_limit_down": 2000, "speed_limit_down_enabled": True}),
        ({"dl_limit": 10}, {"speed_limit_down": 1, "speed_limit_down_enabled": True}),
        ({"dl_limit": 0}, {"speed_limit_down_enabled": False}),
        ({"max_ratio": 1.5}, {"seed_ratio_limit": 1.5, "seed_ratio_limited": True}),
        ({"max_ratio": -1}, {"seed_ratio_limited": False}),
        ({"max_ratio_enabled": False, "max_ratio": -1}, {"seed_ratio_limited": False}),
        ({"max_seeding_time": 60}, {"seeding_time_limit": 60, "seeding_time_limited": True}),
        (
            {"scheduler_days": 1, "schedule_from_hour": 2, "schedule_from_min": 30},
            {"alt_speed_time_day": 62, "alt_speed_time_begin": 150},
        ),
        ({"encryption": 1, "bittorrent_protocol": 1}, {"encryption": "required", "utp_enabled": False}),
        ({"add_stopped_enabled": True, "save_path": "/g"}, {"start_added_torrents": False, "folder": "/g"}),
        ({"max_active_uploads": -1}, {"seed_queue_enabled": False}),
    ],
)
def test_preferences_are_settings_by_other_names(given, fields):
    before = Settings(folder="/f", speed_limit_down_enabled=True, seed_ratio_limited=True, seed_queue_enabled=True)
    after, refusals, _ = preferences.changed(before, json.dumps(given), PORT)
    assert refusals == []
    assert msgspec.to_builtins(after) == {**msgspec.to_builtins(before), **fields}
    shown = preferences.shown(after, PORT)
    assert all(shown[name] == value for name, value in given.items() if name != "dl_limit" or value != 10)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ('{"autorun_program": "rm -rf /"}', "--script-done"),
        ('{"autorun_enabled": true}', "--script-done"),
        ('{"proxy_type": "SOCKS5"}', "tunnels"),
        ('{"web_ui_password": "x"}', "--rpc-password-file"),
        ('{"preallocate_all": true}', "does not have it"),
        ('{"no_such": 1}', "does not have it"),
        ('{"dl_limit": "fast"}', "dl_limit"),
        ('{"scheduler_days": 99}', "scheduler_days"),
        ('{"scheduler_days": -1}', "scheduler_days"),
        ('{"encryption": -1}', "encryption"),
        ('{"schedule_from_min": 90}', "schedule_from_min"),
        ('{"encryption": null}', "encryption"),
        ("[]", "JSON object"),
        ("[" * 100_000, "JSON object"),
    ],
)
def test_what_cannot_be_set_is_refused_and_says_what_to_do(given, why):
    def change():
        _, refusals, asked = preferences.changed(Settings(folder="/f"), given, PORT)
        refuse_some(refusals, asked)

    with pytest.raises(RequestError, match=why):
        change()


def test_of_a_form_with_wrong_values_the_others_are_set():
    given = {"dl_limit": "fast", "max_ratio": "x", "queueing_enabled": "maybe", "up_limit": 5000, "pex": False}
    after, refusals, asked = preferences.changed(Settings(folder="/f"), json.dumps(given), PORT)
    assert [refusal.split()[0] for refusal in refusals] == ["dl_limit", "max_ratio", "queueing_enabled"]
    assert (after.speed_limit_up, after.pex_enabled, asked) == (5, False, 5)


@given(st.text() | st.from_regex(r"-?\d{1,400}(\.\d+)?", fullmatch=True) | st.sampled_from(["inf", "nan", "1e999"]))
def test_no_text_is_a_number_that_breaks_anything(text):
    words = Words({"n": text}, {})
    for read in (words.number, words.fraction):
        with contextlib.suppress(RequestError):
            assert abs(read("n")) <= 2**53


def test_limits_of_seeding_are_own_none_or_those_of_all():
    words = Words({"ratioLimit": "1.5", "seedingTimeLimit": "-1", "inactiveSeedingTimeLimit": "-2"}, {})
    assert share_limits(words) == {
        "ratio_mode": LimitMode.SINGLE,
        "ratio_limit": 1.5,
        "seeding_mode": LimitMode.UNLIMITED,
        "idle_mode": LimitMode.GLOBAL,
    }
    with pytest.raises(RequestError, match="ratioLimit"):
        share_limits(Words({"ratioLimit": "-3"}, {}))
    with pytest.raises(ConflictError, match="stopped"):
        share_limits(Words({"shareLimitAction": "RemoveWithContent"}, {}))
    assert speed_limit("download", 1_048_576) == {"download_limited": True, "download_limit_kb": 1049}
    assert speed_limit("upload", 0) == {"upload_limited": False}
