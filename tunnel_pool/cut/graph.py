"""The weighted graph of a profile and its minimum s-t cut. Pure; networkx does the cutting. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import networkx as nx

from tunnel_pool.cut.components import Boundary, Components
from tunnel_pool.system.errors import UserError

Edge = tuple[str, str]


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts what passes between two components, both ways together."""

    first: str
    second: str
    bytes: int
    calls: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what a run did: flows over `flow_seconds`, and each component's CPU seconds over another run.

    `origin`: what ran, on what, when.
    """

    flow_seconds: float
    flows: list[Flow]
    cpu_seconds: dict[str, float]
    origin: dict[str, Any] = msgspec.field(default_factory=dict)

    def costliest(self, stays: str) -> str:
        """Return the component that used the most CPU, without the one that has to stay. Raises UserError."""
        others = {name: seconds for name, seconds in self.cpu_seconds.items() if name != stays}
        if not any(others.values()):
            raise UserError("the profile has no CPU time; was the run too short?")
        return max(others, key=lambda name: others[name])


class Cut(NamedTuple):
    """A cut: `stays` and `goes` are the components of either side, `crossing` the edges between, with bytes/s."""

    stays: frozenset[str]
    goes: frozenset[str]
    crossing: dict[Edge, float]

    @property
    def bytes_per_s(self) -> float:
        return sum(self.crossing.values())


def graph_of(profile: Profile, free: Iterable[Iterable[str]] = ()) -> nx.Graph:
    """Return components, and bytes/s on their edges; `free` edges weigh nothing, as cutting them adds nothing."""
    graph = nx.Graph()
    graph.add_nodes_from(profile.cpu_seconds)
    unweighed = {frozenset(edge) for edge in free}
    for flow in profile.flows:
        weight = 0.0 if {flow.first, flow.second} in unweighed else flow.bytes / profile.flow_seconds
        graph.add_edge(flow.first, flow.second, weight=weight, calls=flow.calls / profile.flow_seconds)
    return graph


def minimum_cut(graph: nx.Graph, stays: Sequence[str], goes: str) -> Cut:
    """Return the cut between them that lets the fewest bytes/s pass. Raises UserError when there is none to find."""
    if goes in stays:
        raise UserError(f"the costliest component is {goes}, which has to stay: there is nothing to cut off")
    for name in (*stays, goes):
        if name not in graph:
            raise UserError(f"nothing was seen of the component {name}")
    first, *others = stays
    if not nx.has_path(graph, first, goes):
        raise UserError(
            f"nothing was seen to pass between {first} and {goes}: does `code` name all that is between them?"
        )
    pinned = graph.copy()
    for other in others:
        pinned.add_edge(first, other)
        pinned.edges[first, other].pop("weight", None)  # an edge without one can't be cut
    _, (_, right) = nx.minimum_cut(pinned, first, goes, capacity="weight")
    # Components that exchange no data with `goes`, not even over others, stay where they are.
    alone = {name for name in right if not nx.has_path(graph, name, goes)}
    return cut_of(graph, set(right) - alone)


def cut_of(graph: nx.Graph, goes: Iterable[str]) -> Cut:
    """Return the cut where these components go, with the flows that cross it."""
    apart = frozenset(goes) & frozenset(graph)
    crossing = {
        (first, second) if second in apart else (second, first): float(data["weight"])
        for first, second, data in graph.edges(data=True)
        if (first in apart) != (second in apart)
    }
    return Cut(frozenset(graph) - apart, apart, crossing)


class Verdict(NamedTuple):
    """Compares a boundary that code deploys with what the data asks for.

    `unpinned`: what it would ask for if nothing but the program's `stays` had to stay.
    """

    boundary: str
    asked: Cut
    deployed: Cut
    unpinned: Cut

    @property
    def is_minimum(self) -> bool:
        return self.asked.goes == self.deployed.goes


def judge(profile: Profile, components: Components) -> list[Verdict]:
    """Return every boundary beside the minimum cut of the graph in which its free edges are free. Raises UserError."""
    return [_judge(profile, components, name, boundary) for name, boundary in components.boundaries.items()]


def _judge(profile: Profile, components: Components, name: str, boundary: Boundary) -> Verdict:
    graph = graph_of(profile, boundary.free)
    goes = profile.costliest(components.stays)
    asked = minimum_cut(graph, [components.stays, *boundary.stays], goes)
    return Verdict(name, asked, cut_of(graph, boundary.apart), minimum_cut(graph, [components.stays], goes))


def cpu_shares(profile: Profile) -> Mapping[str, float]:
    total = sum(profile.cpu_seconds.values()) or 1.0
    return {name: seconds / total for name, seconds in profile.cpu_seconds.items()}
