"""The picture of a cut: components by side, edges by bytes/s, the cut as a line."""

import math
from pathlib import Path
from typing import Any

import networkx as nx

from tunnel_pool.bench.harness.report import save_plot
from tunnel_pool.cut.components import Components
from tunnel_pool.cut.graph import Cut, Profile, cpu_shares, cut_of, graph_of

STAYS, GOES, CUT = "#4c78a8", "#f58518", "#d62728"
LEAST_SHOWN = 1.0  # bytes/s; below it an edge is drawn without its number


def bytes_per_s(value: float) -> str:
    for unit, size in (("MB/s", 1e6), ("kB/s", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B/s"


def draw(profile: Profile, components: Components, cut: Cut, path: Path) -> None:
    """Draw bytes/s as they were seen, whatever is free, and mark where boundaries are deployed.

    Raises UserError when it can't be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tunnel-pool"
    from matplotlib import pyplot

    graph = graph_of(profile)
    # Components that no flow connects with `stays` are left out.
    graph = graph.subgraph(nx.node_connected_component(graph, components.stays)).copy()
    places = _places(graph, components.stays, cut)
    shares = cpu_shares(profile)
    figure, axes = pyplot.subplots(figsize=(12, 6.5), layout="constrained")
    most = max((data["weight"] for _, _, data in graph.edges(data=True)), default=0.0)
    for first, second, data in graph.edges(data=True):
        _draw_edge(axes, (places[first], places[second]), data, most, (first in cut.goes) != (second in cut.goes))
    for name, (x, y) in places.items():
        share = shares.get(name, 0.0)
        colour = GOES if name in cut.goes else STAYS
        area = 300 + 7000 * share
        axes.scatter([x], [y], s=area, color=colour, zorder=3, edgecolors="white", linewidths=1.5)
        below = -math.sqrt(area) / 2 - 3
        label: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top", "zorder": 6}
        axes.annotate(f"{name}\n{share:.1%} CPU", (x, y), xytext=(0, below), fontsize=9, weight="bold", **label)
    for name, boundary in components.boundaries.items():
        deployed = cut_of(graph, boundary.apart)
        if not deployed.crossing:
            continue
        first, second = max(deployed.crossing, key=lambda edge: deployed.crossing[edge])
        middle = _between(places[first], places[second])
        arrow = {"arrowstyle": "->", "color": "#333333", "shrinkB": 14}
        note: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "arrowprops": arrow}
        axes.annotate(f"deployed: {name}", middle, xytext=(0, 62), fontsize=9, style="italic", zorder=6, **note)
    axes.axvline(0, color=CUT, linestyle=(0, (6, 4)), linewidth=2, zorder=1)
    where = " and ".join(f"{first} | {second}" for first, second in _heaviest(cut))
    axes.set_title(f"The minimum cut: {where}; {bytes_per_s(cut.bytes_per_s)} cross", fontsize=11, loc="left")
    for x, side, place, colour in ((-0.05, "right", "stays", STAYS), (0.05, "left", "goes", GOES)):
        axes.text(x, 0.0, place, ha=side, color=colour, fontsize=12, transform=axes.get_xaxis_transform())
    axes.margins(0.12)
    axes.set_axis_off()
    save_plot(figure, path)
    pyplot.close(figure)


def _heaviest(cut: Cut) -> list[tuple[str, str]]:
    """Return the edges that carry nearly all that crosses."""
    return [edge for edge, weight in cut.crossing.items() if weight >= 0.05 * cut.bytes_per_s] or list(cut.crossing)


def _places(graph: nx.Graph, stays: str, cut: Cut) -> dict[str, tuple[float, float]]:
    """Return each component's place: columns by steps from the cut, the heaviest in the middle of each."""
    steps = nx.single_source_shortest_path_length(_heavy_tree(graph), stays)
    weight = dict(graph.degree(weight="weight"))
    sides: dict[int, list[str]] = {}
    edge_of_stays = max((steps[name] for name in cut.stays if name in graph and weight[name] > 0), default=0)
    for name in graph:
        column = steps[name] - edge_of_stays
        column = max(column, 1) if name in cut.goes else min(column - 1, -1)
        sides.setdefault(column, []).append(name)
    places = {}
    for column, names in sides.items():
        ordered = sorted(names, key=lambda name: -weight[name])
        for number, name in enumerate(ordered):
            row = (number + 1) // 2 * (1 if number % 2 else -1)
            x = column - 0.5 if column > 0 else column + 0.5
            places[name] = (2.0 * x, float(row) + 0.12 * math.sin(column))
    return places


def _heavy_tree(graph: nx.Graph) -> nx.Graph:
    """Return the heaviest edges that join everything: along them the data flows."""
    return nx.maximum_spanning_tree(graph, weight="weight")


def _draw_edge(
    axes: Any, ends: tuple[tuple[float, float], tuple[float, float]], data: dict[str, float], most: float, is_cut: bool
) -> None:
    start, end = ends
    weight = data["weight"]
    width = 0.6 + 7 * math.log1p(weight) / math.log1p(most) if weight else 0.4
    axes.plot(
        [start[0], end[0]], [start[1], end[1]], color=CUT if is_cut else "#888888",
        linewidth=width if weight > most / 100 else 0.8, alpha=0.75 if weight > most / 100 else 0.35, zorder=2,
    )  # fmt: skip
    if weight >= LEAST_SHOWN and weight > most / 1000:
        middle = _between(start, end)
        text = f"{bytes_per_s(weight)}\n{data['calls']:.0f} calls/s"
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        axes.annotate(text, middle, ha="center", va="center", fontsize=8, zorder=5, bbox=box)


def _between(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
