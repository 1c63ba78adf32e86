"""Tests hop counts, the queue, settings, names and the password check, without I/O."""

import base64
import datetime
from types import SimpleNamespace

import libtorrent as lt
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import outcome
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import INCOMING, LimitMode, Record
from tunnel_pool.daemon.rules.hops import HopRules, checked_hops, hops_of_labels, other_labels
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.queue import Activity, QueueLimits, View, moved, plan, reached_limits
from tunnel_pool.daemon.rules.room import NOT_TOLD, Budget
from tunnel_pool.daemon.server.guard import (
    Credentials,
    is_authorized,
    may_listen,
)
from tunnel_pool.daemon.server.transmission.arguments import priorities_of
from tunnel_pool.daemon.server.transmission.fields import CHECKING, DOWNLOADING, FIELDS
from tunnel_pool.daemon.server.transmission.names import camel, kebab, snake
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.counted import Counted
from tunnel_pool.daemon.torrents.seen import Count, StatusSummary
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.torrent.announces.account import Totals

RULES = HopRules(default=2, by_label={"linux": 1, "secret": 3}, by_folder={"/data": 1, "/data/plain": 0})


@pytest.mark.parametrize(
    ("asked", "labels", "folder", "hops"),
    [
        (None, [], "/elsewhere", 2),
        (None, [], "/data/x", 1),
        (None, [], "/data/plain/x", 0),
        (None, [], "/datax", 2),
        (None, ["linux"], "/data/plain", 1),
        (None, ["linux", "secret"], "/data", 3),
        (None, ["Hops:0", "secret"], "/data", 0),
        (3, ["linux"], "/data/plain", 3),
        (1, ["hops:1"], "/", 1),
        (0, ["secret"], "/", 0),
    ],
)
def test_hops_by_wish_label_and_folder(asked, labels, folder, hops):
    assert RULES.hops(asked, labels, folder) == hops


@pytest.mark.parametrize("labels", [["hops:4"], ["hops:"], ["hops:-1"], ["hops:1", "hops:2"], ["hops:²"]])
def test_a_label_that_is_no_hop_count_is_refused(labels):
    with pytest.raises(ValueError, match="hop count"):
        RULES.hops(None, labels, "/")


def test_two_wishes_that_differ_are_refused():
    with pytest.raises(ValueError, match="the label says 2"):
        RULES.hops(0, ["hops:2"], "/")


@given(st.one_of(st.text(), st.integers(), st.booleans(), st.floats(), st.none()))
def test_a_hop_count_is_0_to_3_or_refused(value):
    assert outcome(lambda: checked_hops(value), ValueError) in (None, 0, 1, 2, 3)


@given(st.lists(st.text(max_size=8)), st.sampled_from(["hops:2", "HOPS:2", " hops: 2 "]))
def test_a_label_says_the_hop_count_wherever_it_is(labels, label):
    labels = [text for text in labels if "hops" not in text.lower()]
    assert hops_of_labels([*labels, label]) == 2
    assert other_labels([label, *labels]) == labels


def view(name, position, finished=False, *, room=True, ratio=0.0, idle_s=0.0, **record):
    folder = "/" if room else "/full"
    kept = Record(infohash=name, number=1, hops=1, name=name, folder=folder, position=position, added_s=0.0, **record)
    return View(kept, finished, 1, False, ratio, idle_s)


BUDGET = Budget({"/": NOT_TOLD}, ["/full"], 0)


def test_the_queue_lets_the_first_run():
    views = [
        view("third", 3),
        view("stopped", 0, stopped=True),
        view("first", 1),
        view("second", 2),
        view("now", 4, started_now=True),
        view("seed", 5, finished=True),
        view("no room", 6, room=False, started_now=True),
    ]
    planned = plan(views, QueueLimits(downloads=2), BUDGET)
    assert {name for name, activity in planned.items() if activity is Activity.RUNNING} == {
        "first", "second", "now", "seed",
    }  # fmt: skip
    assert planned["third"] is Activity.QUEUED
    assert planned["stopped"] is Activity.STOPPED
    assert planned["no room"] is Activity.NO_ROOM


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans())), st.integers(0, 5), st.integers(0, 5))
def test_no_more_run_than_may(kinds, downloads, seeds):
    views = [view(str(i), i, finished, stopped=stopped, room=room) for i, (finished, stopped, room) in enumerate(kinds)]
    planned = plan(views, QueueLimits(downloads, seeds), BUDGET)
    running = [each for each in views if planned[each.record.infohash] is Activity.RUNNING]
    assert set(planned) == {each.record.infohash for each in views}
    assert sum(not each.finished for each in running) <= downloads
    assert sum(each.finished for each in running) <= seeds
    for each in views:
        if planned[each.record.infohash] is Activity.QUEUED:  # whoever waits, those before it have taken all there is
            ahead = [e for e in running if e.finished == each.finished and e.record.position < each.record.position]
            assert len(ahead) == (seeds if each.finished else downloads)


@pytest.mark.parametrize(
    ("finished", "done", "wanted", "progress", "left"),
    [
        (False, 0, 0, 0.0, 0),
        (False, 30, 100, 0.3, 70),
        # All of it came, and the last piece's hash is still being checked.
        (False, 100, 100, 0.99, 1),
        (True, 100, 100, 1.0, 0),
    ],
)
def test_a_download_is_done_when_its_last_piece_was_checked(finished, done, wanted, progress, left):
    told = dict.fromkeys((*StatusSummary._fields, "list_peers"), 0) | {
        "errc": SimpleNamespace(value=int),
        "torrent_file": None,
        "info_hashes": lt.info_hash_t(),
    }
    told |= {"is_finished": finished, "has_metadata": True, "total_wanted": wanted, "total_wanted_done": done}
    record = Record(infohash="", number=1, hops=1, name="", folder="", position=0, added_s=0.0)
    torrent = Torrent(Count(), record, Lane(1), None, SimpleNamespace(**told))
    assert (torrent.progress, torrent.left_bytes) == (progress, left)
    incoming = msgspec.structs.replace(record, folder=f"/own/.ab{INCOMING}", folder_when_done="/own")
    arriving = Torrent(Count(), incoming, Lane(1), None, SimpleNamespace(**told))
    assert arriving.left_bytes == max(left, min(1, wanted))  # its files are not where they are looked for


def status_of(uploaded, downloaded=0, failed=0):
    told = dict.fromkeys((*StatusSummary._fields, "list_peers"), 0) | {
        "errc": SimpleNamespace(value=int),
        "torrent_file": None,
        "info_hashes": lt.info_hash_t(),
    }
    told |= {"total_payload_upload": uploaded, "total_payload_download": downloaded, "total_failed_bytes": failed}
    return SimpleNamespace(**told, is_finished=True)


@pytest.mark.parametrize("event", [Event.FAILED, Event.FAILED_FOR_NOW, Event.LOST])
def test_a_torrent_that_failed_before_it_was_checked_is_not_said_to_be_checked_for_ever(event):
    status = status_of(0)
    status.state, status.has_metadata = lt.torrent_status.checking_files, True
    record = Record(infohash="", number=1, hops=1, name="", folder="", position=0, added_s=0.0)
    torrent = Torrent(Count(), record, Lane(1), None, status)
    torrent.plan(Activity.RUNNING)
    assert FIELDS["status"](torrent) == CHECKING
    torrent.happened(event, "no room")
    assert FIELDS["status"](torrent) == DOWNLOADING
    assert FIELDS["error_string"](torrent) == "no room"


def test_what_a_torrent_moved_is_counted_on_when_libtorrent_begins_from_0():
    record = Record(infohash="", number=1, hops=1, name="", folder="", position=0, added_s=0.0)
    torrent = Torrent(Count(), record, Lane(1), None, status_of(0), counted=Counted(Totals(1000, 500)))
    torrent.update(status_of(30, 20, failed=5))
    assert torrent.totals == (1030, 515)
    # It was paused, sent 70 more before, and was started: only libtorrent knows yet.
    assert torrent.counted.totals_by(StatusSummary.of(status_of(100, 20, failed=5))) == (1100, 515)
    torrent.update(status_of(100, 20, failed=5))
    torrent.update(status_of(0))
    assert torrent.totals == (1100, 515)
    torrent.update(status_of(7, 9))
    assert torrent.totals == (1107, 524)
    # It has gone to another session.
    torrent.counted = Counted(torrent.totals)
    torrent.update(status_of(1))
    assert torrent.totals == (1108, 524)


@pytest.mark.parametrize(
    ("finished", "ratio", "idle_s", "record", "done"),
    [
        (False, 9.0, 1e6, {}, False),
        (True, 2.0, 0.0, {}, True),
        (True, 1.9, 599.0, {}, False),
        (True, 0.0, 600.0, {}, True),
        (True, 9.0, 1e6, {"ratio_mode": LimitMode.UNLIMITED, "idle_mode": LimitMode.UNLIMITED}, False),
        (True, 0.5, 0.0, {"ratio_mode": LimitMode.SINGLE, "ratio_limit": 0.5}, True),
    ],
)
def test_what_has_given_enough(finished, ratio, idle_s, record, done):
    limits = QueueLimits(ratio=2.0, idle_min=10)
    assert bool(reached_limits(view("x", 0, finished, ratio=ratio, idle_s=idle_s, **record), limits)) is done


@given(st.lists(st.integers(), unique=True), st.data(), st.sampled_from(["top", "up", "down", "bottom"]))
def test_the_order_after_a_move_in_the_queue(order, data, where):
    which = set(data.draw(st.lists(st.sampled_from(order)))) if order else set()
    after = moved(order, which, where)
    assert sorted(after) == sorted(order)
    assert [x for x in after if x in which] == [x for x in order if x in which]
    assert [x for x in after if x not in which] == [x for x in order if x not in which]
    if where in ("top", "bottom"):
        assert set(after[: len(which)] if where == "top" else after[len(after) - len(which) :]) == which
    else:
        step = 1 if where == "up" else -1
        assert all(0 <= step * (order.index(x) - after.index(x)) <= 1 for x in which)


def test_alternative_speeds_by_the_clock():
    settings = Settings(
        folder="/", speed_limit_down=10, speed_limit_down_enabled=True, alt_speed_down=1, alt_speed_up=2,
        alt_speed_time_enabled=True, alt_speed_time_begin=22 * 60, alt_speed_time_end=6 * 60, alt_speed_time_day=2,
    )  # fmt: skip
    monday = datetime.datetime(2026, 11, 23)
    by_hour = {21: False, 23: True, 29: True, 5: False, 47: False}  # 5 is in Sunday's night
    for hours, is_wanted in by_hour.items():
        assert settings.scheduled(monday + datetime.timedelta(hours=hours)) is is_wanted
    assert settings.rates() == (10_000, 0)
    assert msgspec.structs.replace(settings, alt_speed_enabled=True).rates() == (1000, 2000)
    assert msgspec.structs.replace(settings, alt_speed_time_enabled=False).scheduled(monday) is None


def test_no_speed_is_not_all_speed():
    assert Settings(folder="/", speed_limit_up=0, speed_limit_up_enabled=True).rates() == (0, 1)


@pytest.mark.parametrize(
    ("name", "old"),
    [("rate_download", "rateDownload"), ("is_utp", "isUTP"), ("id", "id"), ("eta_idle", "etaIdle")],
)
def test_names_in_both_forms(name, old):
    assert camel(name) == old
    assert snake(old) == snake(name) == name


@pytest.mark.parametrize(
    ("name", "old"),
    [("alt_speed_up", "alt-speed-up"), ("seed_ratio_limited", "seedRatioLimited"), ("rpc_version", "rpc-version")],
)
def test_names_of_the_session_in_both_forms(name, old):
    assert kebab(name) == old
    assert snake(old) == name


def test_no_field_is_lost_by_its_old_name():
    assert all(snake(camel(name)) == name for name in FIELDS)


def test_files_are_counted_as_clients_see_them():
    """Files that only pad are not shown to clients."""
    assert priorities_of([], [0, 2], {"files_unwanted": [1]}) == [4, 4, 0]
    assert priorities_of([4, 4, 0], [0, 2], {"priority_high": []}) == [7, 4, 0]
    assert priorities_of([4, 4, 0], [0, 2], {"files_wanted": [1], "priority_low": [1]}) == [4, 4, 1]
    assert priorities_of([], None, {"files_unwanted": [3]}) == [4, 4, 4, 0]
    with pytest.raises(RequestError, match="no such file"):
        priorities_of([], [0, 2], {"files_unwanted": [2]})


def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "authorized"),
    [
        (basic("me:söcret:x"), True),
        (basic("me:secret"), False),
        (basic("söcret:x"), False),
        ("Bearer " + basic("me:söcret:x")[6:], False),
        ("Basic %%%", False),
        ("Basic é", False),
        ("", False),
        (None, False),
    ],
)
def test_the_password(header, authorized):
    assert is_authorized(header, None, Credentials("me", "söcret:x")) is authorized
    assert is_authorized(header, None, None)


@pytest.mark.parametrize(("key", "authorized"), [("söcret:x", True), ("", False), ("söcret", False), ("\udcff", False)])
def test_a_key_is_the_password(key, authorized):
    assert is_authorized(None, key, Credentials("me", "söcret:x")) is authorized
    assert is_authorized("Basic bm8=", key, Credentials("me", "söcret:x")) is authorized
    assert is_authorized(None, None, Credentials("me", "söcret:x")) is False


def test_beyond_this_machine_with_a_password_alone():
    assert may_listen("127.0.0.5", None)
    assert not may_listen("0.0.0.0", None)
    assert may_listen("0.0.0.0", Credentials("a", "b"))
