"""tunnel-pool bench: ours and its peers side by side in one run, on this machine alone."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tunnel_pool.bench import (
    api,
    download,
    elastic,
    floods,
    forwarding,
    hidden,
    idle,
    isolation,
    limits,
    scaling,
    seeks,
    soak,
    streams,
    tribler,
)
from tunnel_pool.bench.harness import report
from tunnel_pool.bench.harness.contenders import ALL, BY_NAME, Contender
from tunnel_pool.cli.arguments import options, values
from tunnel_pool.packet_engine import EngineChoice, is_built
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.system.errors import UsageError, UserError

STREAMS = "streams"
IDLE = "idle"
ISOLATION = "isolation"
HIDDEN = "hidden"
ELASTIC = "elastic"
LIMITS = "limits"
FLOODS = "floods"
SCALING = "scaling"
SEEKS = "seeks"
API = "api"
STARTS = "starts"
SOAK = "soak"
TRIBLER = "tribler"
OF_A_NODE = (LIMITS, FLOODS, SCALING)
# Measured by themselves.
ALONE = (STREAMS, IDLE, ISOLATION, HIDDEN, ELASTIC, SEEKS, API, STARTS, SOAK, TRIBLER, *OF_A_NODE)
USUAL = {"workers": WorkerRange(1, 1), "seconds": 5, "size": 200, "runs": 3}
UNUSUAL: dict[str, dict[str, Any]] = {
    IDLE: {"workers": WorkerRange(16, 16), "seconds": 60},
    ISOLATION: {"workers": WorkerRange(2, 2), "seconds": 30},
    HIDDEN: {"workers": WorkerRange(2, 2), "seconds": 30, "runs": 20},
    ELASTIC: {"workers": WorkerRange(1, 3), "seconds": 40, "size": 3000},
    LIMITS: {"seconds": 10},
    FLOODS: {"seconds": 10},
    SCALING: {"seconds": 10},
    SEEKS: {"size": 800},
    API: {"seconds": 10, "size": 1000},
    STARTS: {"runs": 20},
    SOAK: {"seconds": 1800},
    TRIBLER: {"workers": WorkerRange(2, 2)},
}
DOWNLOADS = {f"download-{hops}": hops for hops in (1, 2, 3)}
FORWARDING = {
    f"{scenario}{'' if trains else '-plain'}": (scenario, trains)
    for scenario in forwarding.SCENARIOS
    for trains in (True, False)
}
SCENARIOS = (*DOWNLOADS, *FORWARDING, *ALONE)
DEFAULT_SCENARIOS = ("download-1", "relay", "exit", "back")

DESCRIPTION = """Measure throughput and CPU, of ours and of what else there is, in one run.

Compare within one run: machines differ, and drift. Scenarios:
  download-1 -2 -3      a file from two seeders over 1, 2 or 3 hops
  relay, exit, back     CPU a cell of one node; -plain: its neighbours send no trains
  streams               control beside a flood on the data stream, by itself
  idle                  CPU, memory and start of a pool with nothing to do, by itself
                        (--workers 16 --seconds 60)
  isolation             what an isolated torrent costs that is idle, by itself
                        (--workers 2 --seconds 30)
  hidden                what it costs to seed many hidden torrents, and how soon each of some
                        answers, by itself (--torrents 2000 --workers 2 --runs 20 --seconds 30)
  elastic               a pool that grows and shrinks under a load that comes and goes, by
                        itself (--workers 1..3 --seconds 40 --size 3000, Python engine)
  limits                how well a node's limits hold: eight greedy circuits, 1 to 4 children, by
                        itself (--seconds 10)
  floods                what floods of handshakes, garbage, forged and replayed cells do to live
                        circuits, by itself (--seconds 10)
  scaling               a relay of 1 and 2 children on cores of their own, and of 1 to 1000
                        circuits, by itself (--seconds 10)
  seeks                 how soon a player has what it seeks in a file that downloads over one hop,
                        by itself (--size 800)
  api                   the daemon's answers under 1 to 200 requests a second for a list of 1000
                        torrents, while it downloads, by itself (--seconds 10 --size 1000)
  starts                the daemon's start with 0 and 1000 torrents, by itself (--runs 20)
  soak                  memory and descriptors of a daemon that works for half an hour, by itself
                        (--seconds 1800)
  tribler               the real Tribler 8 with its own tunnels and with ours, one file over 1 and
                        3 hops, by itself (--workers 2; needs --tribler DIR, unshare and ip)
Contenders:
""" + "\n".join(f"  {contender.name:21} {contender.what}" for contender in ALL)

Measure = Callable[[], Awaitable[dict[str, Any]]]


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    number = values.whole_number
    parser.add_argument(
        "scenario", nargs="*", metavar="SCENARIO", help=f"What to measure (default: {' '.join(DEFAULT_SCENARIOS)})."
    )
    parser.add_argument(
        "--contenders",
        type=_names(tuple(BY_NAME)),
        metavar="NAME,NAME...",
        default=None,
        help="Whom to measure (default: all).",
    )
    parser.add_argument("--runs", type=number(1, 100), metavar="R", help="Number of runs of each (default: 3).")
    parser.add_argument("--size", type=number(1, 1 << 20), metavar="MB", help="Size of the file (default: 200).")
    parser.add_argument("--workers", type=values.workers, metavar="N", help="Workers of our downloader (default: 1).")
    parser.add_argument(
        "--seconds", type=number(1, 3600), help="Seconds that each node or stream is under load, or idle (default: 5)."
    )
    parser.add_argument(
        "--torrents",
        type=number(1, 100_000),
        default=hidden.TORRENTS,
        help="Number of hidden torrents (default: %(default)s).",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="Draw the result as well, as .png, .svg or .pdf (needs matplotlib)."
    )
    parser.add_argument(
        "--tribler", type=Path, metavar="DIR", help="Folder with Tribler's source, in which src/run_tribler.py is."
    )
    parser.add_argument(
        "--tribler-python",
        metavar="FILE",
        help="Python interpreter that has what Tribler needs, protobuf and psutil (default: ours).",
    )
    options.add_output_options(parser, log_level="error")
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every scenario with every contender. Raises UserError when one fails."""
    scenarios = _scenarios(arguments.scenario)
    for name, usual in {**USUAL, **UNUSUAL.get(scenarios[0], {})}.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, usual)
    if arguments.plot is not None:
        report.check_plot(arguments.plot)
    if scenarios[0] in ALONE:
        return await _run_alone(scenarios[0], arguments)
    if not is_built() and any(name in FORWARDING for name in scenarios):
        raise UserError("relay, exit and back need the native packet engine, which is not built; name a download")
    contenders = _contenders(arguments.contenders)
    measured: dict[str, report.Rows] = {name: {} for name in scenarios}
    for number in range(arguments.runs):
        for scenario in scenarios:
            # Row by row within each run, so that a drifting machine hits them all.
            for row, measure in _rows(scenario, contenders, arguments):
                print(f"run {number + 1} of {arguments.runs}: {scenario}, {row}", file=sys.stderr, flush=True)
                measured[scenario].setdefault(row, []).append(await measure())
    result = {"ok": True, "size_mb": arguments.size, "runs": arguments.runs, "scenarios": measured}
    if arguments.plot is not None:
        report.draw(result, arguments.plot)
    return result


async def _run_alone(scenario: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if scenario in OF_A_NODE and not is_built():
        raise UserError(f"{scenario} is measured on the native packet engine, which is not built")
    measured = await MEASURE[scenario](arguments)
    if arguments.plot is not None and scenario in DRAW:
        DRAW[scenario](measured, arguments.plot)
    return {"ok": True, scenario: measured}


def _scenarios(names: Sequence[str]) -> tuple[str, ...]:
    """Return the scenarios to measure. Raises UsageError."""
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"{name!r} is no scenario; there are {', '.join(SCENARIOS)}")
    for name in ALONE:
        if name in names and len(names) > 1:
            raise UsageError(f"{name} is measured alone: name no other scenario")
    return tuple(names) or DEFAULT_SCENARIOS


def _contenders(names: tuple[str, ...] | None) -> list[Contender]:
    """Return the contenders to measure; by default, all that run here. Raises UserError."""
    chosen = ALL if names is None else [BY_NAME[name] for name in names]
    if is_built():
        return chosen
    if names is not None and any(contender.engine is EngineChoice.NATIVE for contender in chosen):
        raise UserError("the native packet engine is not built, so it can't be measured")
    return [contender for contender in chosen if contender.engine is not EngineChoice.NATIVE]


def _rows(scenario: str, contenders: list[Contender], arguments: argparse.Namespace) -> list[tuple[str, Measure]]:
    if scenario in DOWNLOADS:
        hops = DOWNLOADS[scenario]
        rows: list[tuple[str, Measure]] = [(report.DIRECT, partial(download.measure_direct, arguments))]
        return rows + [
            (contender.name, partial(download.measure, contender, hops, arguments)) for contender in contenders
        ]
    role, trains = FORWARDING[scenario]
    return [
        (contender.name, partial(forwarding.measure, role, contender, trains, arguments)) for contender in contenders
    ]


MEASURE: dict[str, Callable[[argparse.Namespace], Awaitable[Any]]] = {
    STREAMS: lambda arguments: streams.measure(arguments.seconds),
    IDLE: lambda arguments: idle.measure(max(arguments.workers.most, 1), arguments.seconds),
    ISOLATION: lambda arguments: isolation.measure(arguments.workers.most, arguments.seconds),
    HIDDEN: lambda arguments: hidden.measure(
        arguments.torrents, arguments.workers.most, arguments.runs, arguments.seconds
    ),
    ELASTIC: lambda arguments: elastic.measure(arguments.workers, arguments.size, arguments.seconds),
    LIMITS: lambda arguments: limits.measure(arguments.seconds),
    FLOODS: lambda arguments: floods.measure(arguments.seconds),
    SCALING: lambda arguments: scaling.measure(arguments.seconds),
    SEEKS: lambda arguments: seeks.measure(arguments.size, arguments.workers.most),
    API: lambda arguments: api.measure(arguments.size, arguments.workers.most, arguments.seconds),
    STARTS: lambda arguments: api.measure_starts(arguments.runs),
    SOAK: lambda arguments: soak.measure(arguments.seconds),
    TRIBLER: lambda arguments: tribler.measure(
        arguments.tribler, arguments.tribler_python, arguments.workers.most, arguments.size, arguments.runs
    ),
}
DRAW: dict[str, Callable[[Any, Path], None]] = {ELASTIC: elastic.draw, SOAK: soak.draw}
DESCRIBE: dict[str, Callable[[Any], str]] = {
    STREAMS: streams.describe,
    IDLE: idle.describe,
    ISOLATION: isolation.describe,
    HIDDEN: hidden.describe,
    ELASTIC: elastic.describe,
    LIMITS: limits.describe,
    FLOODS: floods.describe,
    SCALING: scaling.describe,
    SEEKS: seeks.describe,
    API: api.describe,
    STARTS: api.describe_starts,
    SOAK: soak.describe,
    TRIBLER: tribler.describe,
}


def describe(result: dict[str, Any]) -> str:
    for name, describe_it in DESCRIBE.items():
        if name in result:
            return describe_it(result[name])
    return report.describe(result)
