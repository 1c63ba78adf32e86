"""What demo and download both report of a run."""

from typing import Any

from ipv8.messaging.anonymization.tunnel import Circuit

from packet_engine import choose
from tunnel_pool.downloader import Downloader
from tunnel_pool.measure import Meter


def run_report(downloader: Downloader, meter: Meter) -> dict[str, Any]:
    """Its circuits, children and drops; the CPU seconds are each command's own."""
    return {
        "hops": downloader.hops,
        "workers": downloader.options.workers,
        "engine": choose(downloader.options.engine).value,
        "circuits": [_circuit_report(circuit, downloader) for circuit in downloader.circuits_seen.values()],
        "worker_restarts": downloader.restarts,
        "worker_rss_mb": meter.peak_rss_mb("workers"),
        "seconds_to_first_circuit": round(downloader.seconds_to_first_circuit or 0.0, 3),
        "dropped": dict(downloader.dropped()),
    }


def _circuit_report(circuit: Circuit, downloader: Downloader) -> dict[str, Any]:
    return {
        "id": f"{circuit.circuit_id:08x}",
        "child": downloader.child_of(circuit),
        "hops": len(circuit.hops),
        "bytes": circuit.bytes_up + circuit.bytes_down,
    }
