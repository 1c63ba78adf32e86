"""tunnel-pool bench: ours and its peers side by side in one run, on this machine alone."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from packet_engine import EngineChoice, is_built
from tunnel_pool.bench import download, elastic, forwarding, idle, report, streams
from tunnel_pool.bench.contenders import ALL, BY_NAME, Contender
from tunnel_pool.cli import options
from tunnel_pool.errors import UsageError, UserError
from tunnel_pool.pool.scaling import WorkerRange

STREAMS = "streams"
IDLE = "idle"
ELASTIC = "elastic"
ALONE = (STREAMS, IDLE, ELASTIC)  # measured by themselves
USUAL = {"workers": WorkerRange(1, 1), "seconds": 5, "size": 200}
UNUSUAL = {
    IDLE: {"workers": WorkerRange(16, 16), "seconds": 60},
    ELASTIC: {"workers": WorkerRange(1, 3), "seconds": 40, "size": 3000},
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
  elastic               a pool that grows and shrinks under a load that comes and goes, by
                        itself (--workers 1..3 --seconds 40 --size 3000, Python engine)
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


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure ours and its peers side by side",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = options.whole_number
    parser.add_argument(
        "scenario", nargs="*", metavar="SCENARIO", help=f"which to measure (default: {' '.join(DEFAULT_SCENARIOS)})"
    )
    parser.add_argument(
        "--contenders", type=_names(tuple(BY_NAME)), metavar="NAME,NAME...", default=None, help="default: all"
    )
    parser.add_argument("--runs", type=number(1, 100), default=3, metavar="R", help="default: %(default)s")
    parser.add_argument("--size", type=number(1, 1 << 20), metavar="MB", help="of the file (default: 200)")
    parser.add_argument("--workers", type=options.workers, metavar="N", help="of our downloader (default: 1)")
    parser.add_argument("--seconds", type=number(1, 3600), help="of load a node or stream, or of idleness (default: 5)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the result, too, as .png, .svg or .pdf (needs matplotlib)"
    )
    options.add_output_options(parser, log_level="error")
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every run of every contender in every scenario. Raises UserError when one fails."""
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
    match scenario:
        case "streams":
            measured = await streams.measure(arguments.seconds)
        case "idle":
            measured = await idle.measure(max(arguments.workers.most, 1), arguments.seconds)
        case _:
            measured = await elastic.measure(arguments.workers, arguments.size, arguments.seconds)
            if arguments.plot is not None:
                elastic.draw(measured, arguments.plot)
    return {"ok": True, scenario: measured}


def _scenarios(names: Sequence[str]) -> tuple[str, ...]:
    """What to measure. Raises UsageError."""
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"{name!r} is no scenario; there are {', '.join(SCENARIOS)}")
    for name in ALONE:
        if name in names and len(names) > 1:
            raise UsageError(f"{name} is measured by itself")
    return tuple(names) or DEFAULT_SCENARIOS


def _contenders(names: tuple[str, ...] | None) -> list[Contender]:
    """Who is measured: by default all that run here. Raises UserError."""
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


DESCRIBE: dict[str, Callable[[Any], str]] = {
    STREAMS: streams.describe,
    IDLE: idle.describe,
    ELASTIC: elastic.describe,
}


def describe(result: dict[str, Any]) -> str:
    for name, describe_it in DESCRIBE.items():
        if name in result:
            return describe_it(result[name])
    return report.describe(result)
