"""Tests the minimum cut of a real run's recorded profile, and that changed weights move the cut."""

import itertools
from pathlib import Path

import msgspec
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.cut.components import OWN, read_components
from tunnel_pool.cut.graph import Flow, Profile, cut_of, graph_of, judge, minimum_cut
from tunnel_pool.cut.record import read_profile
from tunnel_pool.system.errors import UserError

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "docs" / "cut-profile.json"


@pytest.fixture
def profile():
    return read_profile(RECORDED)


@pytest.fixture
def components():
    return read_components(OWN)


def weighing(profile, first, second, times):
    """Return the profile with the bytes of one edge multiplied by `times`."""
    flows = [
        msgspec.structs.replace(
            flow, bytes=int(flow.bytes * (times if {flow.first, flow.second} == {first, second} else 1))
        )
        for flow in profile.flows
    ]
    return msgspec.structs.replace(profile, flows=flows)


def test_the_deployed_boundaries_are_what_the_recorded_profile_asks_for(profile, components):
    verdicts = judge(profile, components)
    assert {verdict.boundary for verdict in verdicts} == {"streams", "steering"}
    for verdict in verdicts:
        assert verdict.is_minimum, verdict
        assert verdict.deployed.bytes_per_s == pytest.approx(verdict.asked.bytes_per_s)


def test_the_recorded_profile_is_of_a_run_that_carried_data(profile):
    carried = {frozenset((flow.first, flow.second)): flow.bytes for flow in profile.flows}
    size_bytes = 60 << 20
    for edge in (("session", "association"), ("association", "dispatcher"), ("dispatcher", "community")):
        assert size_bytes < carried[frozenset(edge)] < 1.3 * size_bytes
    assert profile.costliest("session") == "engine"


def test_the_side_of_each_component_is_the_one_that_the_code_has_it_on(components):
    """A child runs what is in `overlay` and py-ipv8; what is `tunnel_pool`'s is in the main process."""
    apart = components.boundaries["streams"].apart
    for name, component in components.components.items():
        mains = [
            code
            for code in component.code
            if code.startswith(("tunnel_pool", "rich")) and not code.startswith("tunnel_pool.overlay")
        ]
        assert (not mains) == (name in apart), name


def test_a_moved_weight_moves_the_cut(profile, components):
    lighter = weighing(profile, "community", "engine", 0.1)
    verdict = next(verdict for verdict in judge(lighter, components) if verdict.boundary == "streams")
    assert not verdict.is_minimum
    assert "community" in verdict.asked.stays
    assert ("community", "engine") in verdict.asked.crossing


def test_the_socket_that_is_there_anyway_is_why_the_steered_boundary_is_where_it_is(profile, components):
    boundary = msgspec.structs.replace(components.boundaries["steering"], free=[])
    (verdict,) = judge(profile, msgspec.structs.replace(components, boundaries={"steering": boundary}))
    assert not verdict.is_minimum
    assert "association" in verdict.asked.stays


names = st.sampled_from("abcdef")
flows = st.dictionaries(
    st.tuples(names, names).filter(lambda edge: edge[0] < edge[1]), st.integers(0, 1000), min_size=1, max_size=15
)


@given(flows)
def test_no_cut_of_all_is_lighter(weights):
    """The minimum is compared with every way to divide the other components between the two sides."""
    profile = Profile(
        flow_seconds=1.0,
        flows=[Flow(first, second, weight, 1) for (first, second), weight in weights.items()],
        cpu_seconds=dict.fromkeys("abcdef", 1.0),
    )
    graph = graph_of(profile)
    if not nx.has_path(graph, "a", "f"):
        with pytest.raises(UserError, match="nothing was seen to pass between a and f"):
            minimum_cut(graph, ["a", "b"], "f")
        return
    found = minimum_cut(graph, ["a", "b"], "f")
    assert {"a", "b"} <= found.stays
    assert "f" in found.goes
    others = "cde"
    lightest = min(
        cut_of(graph, {"f", *apart}).bytes_per_s
        for number in range(len(others) + 1)
        for apart in itertools.combinations(others, number)
    )
    assert found.bytes_per_s == pytest.approx(lightest)
    assert all(nx.has_path(graph, name, "f") for name in found.goes)


def test_what_costs_most_must_not_be_what_stays(profile):
    with pytest.raises(UserError, match="nothing to cut off"):
        minimum_cut(graph_of(profile), ["engine"], "engine")
    with pytest.raises(UserError, match="nothing was seen of the component ghost"):
        minimum_cut(graph_of(profile), ["session"], "ghost")
    idle = msgspec.structs.replace(profile, cpu_seconds={"session": 3.0, "engine": 0.0})
    with pytest.raises(UserError, match="no CPU time"):
        idle.costliest("session")


def test_a_profile_that_is_none_is_refused_in_one_line(tmp_path):
    path = tmp_path / "profile.json"
    for text in ("", "{}", '{"flow_seconds": 1, "flows": [], "cpu_seconds": {}, "more": 1}', "[1]"):
        path.write_text(text)
        with pytest.raises(UserError, match="is no profile"):
            read_profile(path)
    with pytest.raises(UserError, match="cannot read"):
        read_profile(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('stays = "a"\n[components.b]', "'a' is no component"),
        ('stays = "a"\n[components.a]\noutside = "c"', "'c' is no component"),
        ('stays = "a"\n[components.a]\n[boundaries.x]\nwhat = ""\napart = ["d"]', "which are no components"),
        (
            'stays = "a"\n[components.a]\nnative_threads = true\n[components.b]\nnative_threads = true',
            "one component's",
        ),
        ("stays = 1", "Expected `str`"),
    ],
)
def test_components_that_make_no_sense_are_refused_in_one_line(tmp_path, text, why):
    path = tmp_path / "components.toml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_components(path)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
