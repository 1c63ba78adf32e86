"""Shows a download's progress on stderr, to a person."""

import sys
import time
from collections.abc import Callable

import psutil
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunnel_pool.overlay.ground.lanes import detour_of, lane_of
from tunnel_pool.overlay.ground.streams import streams_of
from tunnel_pool.torrent.client import TorrentClient

LINE_INTERVAL_S = 2.0
REFRESH_INTERVAL_S = 0.5
MAX_CIRCUIT_ROWS = 16


def circuit_rows(client: TorrentClient) -> list[Circuit]:
    """Return the circuits by id, which is by child."""
    circuits = client.tunnels.circuits.values()
    return sorted((c for c in circuits if lane_of(c).hops == client.hops), key=lambda c: c.circuit_id)


def summary(client: TorrentClient) -> str:
    """Return one line: done, speed, circuits."""
    statuses = client.statuses
    circuits = client.circuits()
    ready, detours = len(circuits), sum(detour_of(circuit) > 0 for circuit in circuits)
    done = sum(status.done_bytes for status in statuses)
    wanted = sum(status.wanted_bytes for status in statuses)
    rate = sum(status.download_bytes_per_s for status in statuses)
    peers = sum(status.peers for status in statuses)
    if not statuses:
        return f"building circuits: {ready} ready, {len(client.tunnels.candidates)} nodes known"
    share = f"{done / 1e6:.1f} of {wanted / 1e6:.1f} MB" if wanted else "waiting for metadata"
    by_detour = f" ({detours} of a hop more: no exit answers from here)" if detours else ""
    return f"{share}  {rate / 1e6:.1f} MB/s  {ready} circuits{by_detour}  {peers} peers"


class _CpuTable:
    """Tells the CPU of each process between two refreshes, in percent of one core."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def percent(self, pid: int) -> str:
        try:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
            return f"{process.cpu_percent():.0f} %"
        except psutil.Error:
            return "-"


class ProgressDisplay:
    """Shows a client's progress inside a `with`; call it with the client as often as you like.

    A table that is redrawn on a terminal; elsewhere a line every few seconds.
    """

    def __init__(self, pids: Callable[[], dict[str, list[int]]]) -> None:
        self._pids = pids
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next_s = 0.0
        self._cpu = _CpuTable()

    def __enter__(self) -> "ProgressDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def __call__(self, client: TorrentClient) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._console.is_terminal:
            self._next_s = now_s + REFRESH_INTERVAL_S
            self._live.update(self._table(client), refresh=True)
        else:
            self._next_s = now_s + LINE_INTERVAL_S
            print(summary(client), file=sys.stderr, flush=True)

    def _table(self, client: TorrentClient) -> Group:
        done = sum(status.done_bytes for status in client.statuses)
        wanted = sum(status.wanted_bytes for status in client.statuses)
        circuits = Table("circuit", "child", "hops", "state", "streams", "MB", box=None, pad_edge=False)
        for circuit in circuit_rows(client)[:MAX_CIRCUIT_ROWS]:
            child = client.child_of(circuit)
            circuits.add_row(
                f"{circuit.circuit_id:08x}",
                "main" if child is None else str(child),
                f"{len(circuit.hops)}/{circuit.goal_hops}",
                "ready" if circuit.state == CIRCUIT_STATE_READY else circuit.state.lower(),
                str(streams_of(circuit).open),
                f"{(circuit.bytes_up + circuit.bytes_down) / 1e6:.1f}",
            )
        processes = Text("CPU  ")
        for role, pids in self._pids().items():
            if pids:
                processes.append(f"{role} " + ", ".join(self._cpu.percent(pid) for pid in pids) + "   ")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=wanted or None, completed=done, width=60))
        return Group(Text(summary(client)), bar, circuits, processes)
