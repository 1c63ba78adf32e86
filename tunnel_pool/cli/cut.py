"""tunnel-pool cut: where the data flow of a program asks to be cut."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.system.errors import UserError

DESCRIPTION = """Find where a program should be cut in two processes.

Runs this program as one process (--workers 0, the Python engine) through a
private swarm, once under a flow meter and once under a CPU profiler; weighs
the edges between its components in bytes a second, and takes the minimum cut
between what has to stay (the libtorrent session) and what is to go (what else
uses the most CPU). Says whether the boundaries that are deployed are those.

Another program: --components its.toml -- script.py ARGUMENT ..., or
-- -m MODULE ARGUMENT ...; docs/CUT.md tells how."""
SIZE_MB = 60
MOST_EDGES = 3  # the most edges that are named


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--components",
        type=Path,
        metavar="TOML",
        help="File that says what the program is made of (default: that of this program).",
    )
    parser.add_argument("--size", type=values.whole_number(1, 1 << 20), default=SIZE_MB, metavar="MB",
                        help="Size of the file that is downloaded (default: %(default)s).")  # fmt: skip
    parser.add_argument("--profile", type=Path, metavar="FILE", help="Cut a profile that was saved, and run nothing.")
    parser.add_argument("--save", type=Path, metavar="FILE", help="Save the profile to this file, as JSON.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="Draw the graph and its cut, as .svg, .png or .pdf.")
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM",
        help="Another program to run and measure, with its arguments.",
    )
    options.add_output_options(parser, log_level="error")
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the cut, and a verdict for each boundary. Raises UserError."""
    for library in ("networkx", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            raise UserError(f"the cut needs {library}: pip install 'tunnel-pool[experiments]'")
    from tunnel_pool.bench.harness.report import check_plot
    from tunnel_pool.cut.components import OWN, read_components
    from tunnel_pool.cut.draw import draw
    from tunnel_pool.cut.graph import cpu_shares, graph_of, judge, minimum_cut
    from tunnel_pool.cut.record import read_profile, record, write_profile

    if arguments.plot is not None:
        check_plot(arguments.plot)
    path = (arguments.components or OWN).absolute()
    components = read_components(path)
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    own = ["-m", "tunnel_pool", "demo", "--workers=0", "--engine=python", "--steering=off", f"--size={arguments.size}"]
    profile = read_profile(arguments.profile) if arguments.profile else await record(path, program or own)
    if arguments.save is not None:
        write_profile(profile, arguments.save)
    graph = graph_of(profile)
    goes = profile.costliest(components.stays)
    cut = minimum_cut(graph, [components.stays], goes)
    verdicts = judge(profile, components)
    if arguments.plot is not None:
        draw(profile, components, cut, arguments.plot)
    return {
        "ok": all(verdict.is_minimum for verdict in verdicts),
        "stays": components.stays,
        "goes": goes,
        "cpu": {name: round(share, 4) for name, share in cpu_shares(profile).items()},
        "edges": [
            {"between": sorted(ends), "bytes_per_s": round(flow["weight"]), "calls_per_s": round(flow["calls"])}
            for *ends, flow in graph.edges(data=True)
        ],
        "cut": _as_json(cut),
        "boundaries": [
            {
                "name": verdict.boundary,
                "what": components.boundaries[verdict.boundary].what,
                "is_minimum": verdict.is_minimum,
                "asked": _as_json(verdict.asked),
                "deployed": _as_json(verdict.deployed),
                "unpinned": _as_json(verdict.unpinned),
            }
            for verdict in verdicts
        ],
    }  # fmt: skip


def _as_json(cut: Any) -> dict[str, Any]:
    crossing = [
        {"from": first, "to": second, "bytes_per_s": round(weight)} for (first, second), weight in cut.crossing.items()
    ]
    return {"goes": sorted(cut.goes), "bytes_per_s": round(cut.bytes_per_s), "crossing": crossing}


def describe(report: dict[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table

    from tunnel_pool.cut.draw import bytes_per_s

    console = Console(width=120)
    components = Table("component", "CPU", "side", title="Components")
    for name, share in sorted(report["cpu"].items(), key=lambda item: -item[1]):
        pin = {report["stays"]: ", has to stay", report["goes"]: ", is to go"}.get(name, "")
        components.add_row(name, f"{share:.1%}", ("goes" if name in report["cut"]["goes"] else "stays") + pin)
    edges = Table("between", "", "bytes", "calls/s", title="Flows")
    for edge in sorted(report["edges"], key=lambda edge: -edge["bytes_per_s"]):
        edges.add_row(*edge["between"], bytes_per_s(edge["bytes_per_s"]), str(edge["calls_per_s"]))
    with console.capture() as captured:
        console.print(components)
        console.print(edges)
        console.print(f"minimum cut: {_crossing(report['cut'])}", highlight=False)
        for boundary in report["boundaries"]:
            console.print(_verdict(boundary), highlight=False, markup=False)
    return captured.get().rstrip()


def _crossing(cut: dict[str, Any]) -> str:
    from tunnel_pool.cut.draw import bytes_per_s

    heavy = sorted(cut["crossing"], key=lambda edge: -edge["bytes_per_s"])
    edges = [f"{edge['from']} | {edge['to']} {bytes_per_s(edge['bytes_per_s'])}" for edge in heavy]
    more = [f"{len(edges) - MOST_EDGES} more"] if len(edges) > MOST_EDGES else []
    return f"{bytes_per_s(cut['bytes_per_s'])} cross ({', '.join(edges[:MOST_EDGES] + more)})"


def _verdict(boundary: dict[str, Any]) -> str:
    deployed, asked, unpinned = (boundary[key] for key in ("deployed", "asked", "unpinned"))
    lines = [f"\n{boundary['name']} ({boundary['what']}): {_crossing(deployed)}"]
    if boundary["is_minimum"]:
        lines.append("  is what the data asks for")
    else:
        lines.append(f"  is NOT what the data asks for: {_crossing(asked)}")
    if unpinned["goes"] != asked["goes"]:
        lines.append(f"  if nothing else had to stay, it would ask for {_crossing(unpinned)}")
    return "\n".join(lines)
