"""The report of a run, by demo and download alike."""

from typing import Any

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.streams import streams_of
from tunnel_pool.packet_engine import choose
from tunnel_pool.system.measure import Meter
from tunnel_pool.torrent.client import TorrentClient


def run_report(client: TorrentClient, meter: Meter) -> dict[str, Any]:
    """Report circuits, children and drops; each command adds its own CPU seconds."""
    return {
        "hops": client.hops,
        "workers": client.options.workers.as_json(),
        "engine": choose(client.options.engine).value,
        "circuits": [_circuit_report(circuit, client) for circuit in client.circuits_seen.values()],
        "worker_restarts": client.restarts,
        "worker_rss_mb": meter.peak_rss_mb("workers"),
        "seconds_to_first_circuit": round(client.seconds_to_first_circuit or 0.0, 3),
        "dropped": dict(client.dropped()),
    }


def _circuit_report(circuit: Circuit, client: TorrentClient) -> dict[str, Any]:
    return {
        "id": f"{circuit.circuit_id:08x}",
        "type": circuit.ctype,
        "child": client.child_of(circuit),
        "hops": len(circuit.hops),
        "bytes": circuit.bytes_up + circuit.bytes_down,
        "streams": streams_of(circuit).all,
    }
