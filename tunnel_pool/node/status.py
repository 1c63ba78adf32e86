"""The status of a node as plain data: for `node status`, for the metrics and for the log. No addresses in it."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT

from tunnel_pool import __version__
from tunnel_pool.contract import Tunnels
from tunnel_pool.node.keeper import LimitsKeeper
from tunnel_pool.overlay.ground.streams import streams_of
from tunnel_pool.overlay.serving.limits import CLASSES, LimitsMemory
from tunnel_pool.system.measure import cpu_seconds


class Watched(NamedTuple):
    """A running node."""

    tunnels: Tunnels
    memory: LimitsMemory
    keeper: LimitsKeeper
    exit_protocols: Sequence[str]
    engine: str
    started_s: float  # time.monotonic


def status_of(node: Watched) -> dict[str, Any]:
    carried = node.tunnels.carried()
    counted = node.memory.counted()
    held = node.keeper.held
    rates = {name: getattr(held, name)._asdict() for name in (*CLASSES, "total", "circuit")} if held else {}
    return {
        "version": __version__,
        "engine": node.engine,
        "uptime_s": round(time.monotonic() - node.started_s, 1),
        "exit": list(node.exit_protocols),
        "bytes": {name: {"up": counted.up[name], "down": counted.down[name]} for name in CLASSES},
        "circuits": {
            "joined": carried.joined,
            "relayed": carried.relays,
            "exits": carried.exits,
            "own": len(node.tunnels.circuits),
        },
        "strangers": {"datagrams": carried.strangers, "bytes": carried.stranger_bytes},
        "streams": {
            "exits": sum(streams_of(end).open for end in node.tunnels.exit_sockets.values()),
            "own": sum(streams_of(circuit).open for circuit in node.tunnels.circuits.values()),
        },
        "candidates": len(node.tunnels.candidates),
        "exits_known": len(node.tunnels.get_candidates(PEER_FLAG_EXIT_BT)),
        "dropped": dict(sorted(node.tunnels.dropped().items())),
        "limits": rates,
        "waiting": node.memory.waiting(),
        "quota_left": node.keeper.quota_left(),
        "children": children_of(node.tunnels),
    }


def children_of(tunnels: Tunnels) -> list[dict[str, Any]]:
    """Return the node's processes; the main one has no slot."""
    pool = tunnels.pool
    rows = [{"slot": None, "state": "main", "restarts": 0, **_process(None)}]
    for slot, record in sorted(pool.records.items()) if pool is not None else ():
        process = _process(pid) if (pid := pool.pid(slot)) is not None else {}  # type: ignore[union-attr]
        rows.append({"slot": slot, "state": record.state.name.lower(), "restarts": record.restarts, **process})
    return rows


def _process(pid: int | None) -> dict[str, Any]:
    try:
        process = psutil.Process(pid)
        cpu_s = round(cpu_seconds(process.pid), 2)
        return {"pid": process.pid, "cpu_s": cpu_s, "rss_bytes": process.memory_info().rss}
    except psutil.Error:
        return {}


def describe(status: dict[str, Any]) -> str:
    """Return the status in words, for people."""
    carried = ", ".join(
        f"{name} {ways['up'] / 1e6:.1f} MB up {ways['down'] / 1e6:.1f} down" for name, ways in status["bytes"].items()
    )
    circuits = status["circuits"]
    lines = [
        f"tunnel-pool {status['version']}, {status['engine']} engine, up {status['uptime_s']:.0f} s; "
        f"exits {', '.join(status['exit']) or 'nothing'}",
        f"carried: {carried}",
        f"circuits: {circuits['relayed']} relayed, {circuits['exits']} exits, {circuits['own']} own, "
        f"{circuits['joined']} joined in all; {status['candidates']} nodes known, "
        f"{status['exits_known']} of them exits",
        "strangers to exits: "
        f"{status['strangers']['datagrams']} datagrams, {status['strangers']['bytes'] / 1e6:.1f} MB",
        f"streams: {status['streams']['exits']} of exits, {status['streams']['own']} own",
        f"waiting for a limit: {', '.join(f'{count} {name}' for name, count in status['waiting'].items())}",
        f"dropped: {', '.join(f'{name} {count}' for name, count in status['dropped'].items()) or 'nothing'}",
    ]
    if status["quota_left"] is not None:
        lines.append(f"quota: {status['quota_left'] / 1e9:.1f} GB left")
    lines += [
        f"{'main' if child['slot'] is None else 'child ' + str(child['slot'])}: {child['state']}"
        + (
            f", pid {child['pid']}, {child['cpu_s']:.1f} s CPU, {child['rss_bytes'] >> 20} MiB"
            if "pid" in child
            else ""
        )
        + (f", {child['restarts']} restarts" if child["restarts"] else "")
        for child in status["children"]
    ]
    return "\n".join(lines)
