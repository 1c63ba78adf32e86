"""tunnel-pool top: a running daemon in a terminal, as it works."""

import argparse
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tunnel_pool.cli.arguments import options
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options, credentials
from tunnel_pool.cli.remote.remote import printable
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.system.errors import UsageError

DESCRIPTION = """Watch a running daemon: its processes, circuits and torrents, until Ctrl-C.

Where stdout is no terminal, or with --once, it prints what is so now, and ends."""
CPU_BAR = 10  # characters a core


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--once", action="store_true", help="Print the table once and end.")
    add_rpc_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    state: dict[str, Any] | None = None
    torrents: dict[str, dict[str, Any]] = {}
    is_live = sys.stdout.isatty() and not arguments.once and not arguments.json
    console = Console()
    async with Remote(arguments.rpc, credentials(arguments)) as remote:
        with Live(console=console, screen=True, auto_refresh=False) if is_live else nullcontext() as live:
            async for name, data in remote.events():
                if name == "state":
                    state = data
                elif name == "torrents":
                    for infohash in data["removed"]:
                        torrents.pop(infohash, None)
                    torrents.update((torrent["infohash"], torrent) for torrent in data["changed"])
                if state is None or name == "happening":
                    continue
                if live is not None:
                    live.update(picture(state, torrents.values(), console.height), refresh=True)
                elif name == "torrents":
                    break
    if state is None:
        raise UsageError("the daemon reported nothing")
    return {"ok": True, "state": state, "torrents": list(torrents.values())}


def picture(state: dict[str, Any], torrents: Iterable[dict[str, Any]], height: int) -> Group:
    """Draw as much as fits, the busiest torrents first."""
    status = state["status"]
    summary = (
        f"tunnel-pool {status['version']}, up {status['uptime_s']:.0f} s: "
        f"{_mega(status['down_bytes_per_s'])} MB/s down, {_mega(status['up_bytes_per_s'])} up, "
        f"{status['circuits_ready']} circuits ready, {status['streams']} streams, "
        f"{status['candidates']} nodes known, {status['exits']} of them exits"
    )
    if status["way_out"]:
        summary += f"\n{status['way_out']}"
    room = max(3, height - len(state["pool"]["children"]) - 7)
    busiest = sorted(torrents, key=lambda t: (-t["down_bytes_per_s"] - t["up_bytes_per_s"], t["position"]))
    return Group(Text(summary, style="bold"), Text(), _pool(state), Text(), _torrents(busiest, room))


def _mega(number: float) -> str:
    return f"{number / 1e6:.2f}"


def _pool(state: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("process", "state", "pid", "CPU", "", "MB", "circuits", "restarts"):
        table.add_column(column, justify="left" if column in ("process", "state", "") else "right")
    for child in state["pool"]["children"]:
        name = "main" if child["slot"] is None else f"child {child['slot']}"
        bar = "█" * min(3 * CPU_BAR, round(CPU_BAR * child["cpu"]))
        numbers = str(child["pid"] or "-"), f"{100 * child['cpu']:.0f} %", bar, f"{child['rss_bytes'] / 1e6:.0f}"
        table.add_row(name, child["state"], *numbers, str(child["circuits"]), str(child["restarts"]))
    return table


def _torrents(torrents: list[dict[str, Any]], room: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("done", "down MB/s", "up MB/s", "peers", "hops"):
        table.add_column(column, justify="right")
    table.add_column("state")
    table.add_column("name", no_wrap=True, overflow="ellipsis")
    for torrent in torrents[:room]:
        rates = _mega(torrent["down_bytes_per_s"]), _mega(torrent["up_bytes_per_s"])
        counts = str(torrent["peers"]), str(torrent["hops"])
        row = (f"{100 * torrent['progress']:.0f} %", *rates, *counts, torrent["state"], printable(torrent["name"]))
        table.add_row(*map(Text, row))
    if len(torrents) > room:
        table.add_row(*[""] * 6, f"and {len(torrents) - room} more")
    return table


def describe(report: dict[str, Any]) -> str:
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.capture() as captured:
        console.print(picture(report["state"], report["torrents"], 1 << 20))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
