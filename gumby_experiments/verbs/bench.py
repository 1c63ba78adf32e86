"""Verbs that run a benchmark of `tunnel-pool bench` as a node, and take over what it measured."""

from collections.abc import Iterable
from typing import Any

from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.pool.program import own_executable


class BenchModule:
    """Runs a benchmark, which measures by itself; the sampler sees it, and all that it starts, as one node."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def _bench(self, number: int, name: str, *options: str) -> Any:
        """Run a benchmark and return what it printed. Raises RunError when it fails."""
        node = self._run.node(number)
        await node.start([*own_executable(), "bench", name, *options, "--json"], ends=True)
        measured = await node.heard(name)
        await node.ended()
        return measured

    @of_a_node
    async def measure_start_methods(self, number: int, workers: str, seconds: str) -> None:
        """Measure pools of so many workers, started either way: times, memory, and CPU over so many idle seconds."""
        measured = await self._bench(number, "idle", f"--workers={workers}", f"--seconds={seconds}")
        for method, figures in measured.items():
            self._run.add_row("pools", start_method=method, **figures)
            self._run.metrics |= {f"{method}_{name}": value for name, value in figures.items()}

    @of_a_node
    async def measure_api(self, number: int, size_mb: str, seconds: str) -> None:
        """Ask at each rate for so many seconds, while a file of this size is downloaded again and again."""
        measured = await self._bench(number, "api", f"--size={size_mb}", f"--seconds={seconds}")
        for row in measured["requests"]:
            self._run.add_row("requests", **row)
        self._run.metrics["torrents"] = measured["torrents"]
        self._run.metrics |= _slowest(measured["requests"])


def _slowest(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the mean and the worst answer of each kind of request, at the rates of 2016's experiments."""
    found: dict[str, float] = {}
    for row in rows:
        if row["rate"] <= 20:
            name = row["request"].split()[-1].strip("/").replace("/", "_").replace("-", "_")
            for key in ("mean_ms", "max_ms"):
                found[f"{name}_{key}"] = max(found.get(f"{name}_{key}", 0.0), row[key])
    return found
