"""Tests the parser of scenarios: Gumby's grammar, and our additions to it."""

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.gumby_experiments.plan.errors import ScenarioError
from tunnel_pool.gumby_experiments.plan.scenario import (
    ALL,
    Peers,
    parse_peers,
    peers_of_roles,
    read_scenario,
    variables_of_roles,
)


def read(text, variables=(), **files):
    texts = {"main.scenario": text, **{f"{name}.scenario": content for name, content in files.items()}}

    def load(name):
        if name not in texts:
            raise FileNotFoundError(2, "No such file or directory", name)
        return texts[name]

    return read_scenario("main.scenario", load, dict(variables))


def test_lines_of_gumbys_own_experiments():
    """The lines are from its experiments/tunnels and docs/advanced_scenario_concepts.rst."""
    scenario = read(
        """
&module gumby.modules.tribler_module.TriblerModule
&include common.scenario
@0:2 set_tunnel_exit False {1-20}
@0:3 set_tunnel_exit True {2}
@0:20 transfer action=seed hops=0 {4}
@! set key 10d00d55231921911991e2f7fd538ec989a2df00
@0:10 start_queries $key {2}
@0:10 store 10$key "value to store" {!1}
@1:0:5.5 stop
30 stop_session
""",
        common="#@0:1 set_tunnel_max_time_inactive 600\n@0:4 start_session\n",
    )
    assert scenario.modules == ("gumby.modules.tribler_module.TriblerModule",)
    assert [(line.at_s, line.verb) for line in scenario.lines] == [
        (2, "set_tunnel_exit"), (3, "set_tunnel_exit"), (4, "start_session"), (10, "start_queries"), (10, "store"),
        (20, "transfer"), (30, "stop_session"), (3605.5, "stop"),
    ]  # fmt: skip
    first, second, session, queries, store, transfer, _, _ = scenario.lines
    assert first.arguments == ("False",)
    assert first.peers == Peers(frozenset(range(1, 21)), excluded=False)
    assert (2 in second.peers, 3 in second.peers) == (True, False)
    assert session.where == "common.scenario:2"
    assert session.peers is ALL
    assert 7 in session.peers
    assert transfer.named == {"action": "seed", "hops": "0"}
    assert queries.arguments == ("10d00d55231921911991e2f7fd538ec989a2df00",)
    assert store.arguments == ("1010d00d55231921911991e2f7fd538ec989a2df00", "value to store")
    assert (1 in store.peers, 2 in store.peers) == (False, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@0:1", "is not TIME VERB"),
        ("soon stop", "'soon' is not a time"),
        ("@1:2:3:4 stop", "is not a time"),
        ("@0:-1 stop", "is not a time"),
        ("@0:1 stop {1-}", "names no nodes"),
        ("@0:1 stop {seeder}", "names no nodes"),
        ('@0:1 annotate "no end', "No closing quotation"),
        ("@0:1 load $window", "nothing says what $window is; there are exit"),
        ("@! stop", "at once, a scenario can only"),
        ("&include absent.scenario", "cannot read absent.scenario"),
        ("&include main.scenario", "does one include itself?"),
        ("&run", "is neither &include FILE nor &module NAME"),
    ],
)
def test_what_can_not_be_read_names_its_line(text, why):
    with pytest.raises(ScenarioError) as raised:
        read(f"# a comment\n\n{text}\n", {"exit": "1-2"})
    assert why in str(raised.value)
    assert str(raised.value).startswith("main.scenario:3: ")
    assert "\n" not in str(raised.value)


words = st.text(string.ascii_letters + string.digits + "_-./", min_size=1, max_size=8)
names = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@given(st.integers(0, 9), st.integers(0, 59), st.lists(words, max_size=4), st.dictionaries(names, words, max_size=3),
       st.none() | st.sets(st.integers(1, 40), min_size=1))  # fmt: skip
def test_what_is_written_is_what_is_read(minutes, seconds, arguments, named, numbers):
    peers = "" if numbers is None else " {" + ",".join(map(str, numbers)) + "}"
    text = " ".join([f"@{minutes}:{seconds}", "verb", *arguments, *(f"{k}={v}" for k, v in named.items())]) + peers
    (line,) = read(text).lines
    assert line.at_s == 60 * minutes + seconds
    assert line.arguments == tuple(arguments)
    assert line.named == named
    assert {number for number in range(1, 41) if number in line.peers} == (numbers or set(range(1, 41)))


@given(st.text(max_size=60))
def test_no_text_does_worse_than_be_refused(text):
    with contextlib.suppress(ScenarioError):
        read(text)


def test_roles_are_numbers_that_go_on():
    roles = {"seeder": 2, "relay": 0, "exit": 3}
    assert list(peers_of_roles(roles)) == [(1, "seeder"), (2, "seeder"), (3, "exit"), (4, "exit"), (5, "exit")]
    assert variables_of_roles(roles) == {"seeder": "1-2", "relay": "", "exit": "3-5"}
    nobody = parse_peers(variables_of_roles(roles)["relay"])
    assert not any(number in nobody for number in range(10))


def test_lines_of_one_time_stay_in_order():
    scenario = read("@0:2 a\n@0:1 b\n@0:2 c\n@0:1 d\n")
    assert [line.verb for line in scenario.lines] == ["b", "d", "a", "c"]
