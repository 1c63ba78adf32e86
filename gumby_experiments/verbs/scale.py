"""Verbs that calibrate the simulation: what a GB costs each process of a download."""

from pathlib import Path

from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.gumby_experiments.verbs.swarm import EXIT, SEEDER, SwarmModule
from tunnel_pool.system.measure import cpu_seconds

ENGINE = "packet engine"  # the name of the native engine's thread
NOTABLE = 0.1  # the share of all helper threads' CPU from which one is noted


class ScaleModule(SwarmModule):
    """Counts what a swarm's nodes cost between `download` and `wait_until_downloaded`."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._before: dict[str, dict[int, float]] = {}

    @of_a_node
    async def count_costs(self, number: int) -> None:
        """Note what CPU the downloader's processes, the exits and the seeders have used so far (see `end_count`)."""
        self._before = self._used(number)

    @of_a_node
    async def end_count(self, number: int) -> None:
        """Set the metrics NAME_s_per_gb: what was used since `count_costs`, by kind of process."""
        used = {
            kind: [seconds - self._before[kind].get(key, 0.0) for key, seconds in by_id.items()]
            for kind, by_id in self._used(number).items()
        }
        *others, busiest = sorted(used.pop("threads"))
        seconds = {"session": busiest, "helpers": sum(others), **{kind: sum(each) for kind, each in used.items()}}
        self._run.metrics["helper_threads"] = sum(each > NOTABLE * sum(others) for each in others)
        for kind, each in seconds.items():
            self._run.metrics[f"{kind}_s_per_gb"] = round(each / self.size_bytes * 1e9, 4)

    def _used(self, number: int) -> dict[str, dict[int, float]]:
        """Return the CPU seconds so far, by thread of the session's process, and by process of all others."""
        main = self._run.node(number)
        if main.pid is None:
            raise RunError("the downloader does not run")
        threads = _threads(main.pid)
        workers = {pid: cpu_seconds(pid) for node, pid in self._run.sampler.workers() if node == number}
        return {
            # Without workers the engine is a thread of this process; it does the workers' work.
            "worker": workers | {thread: seconds for thread, (name, seconds) in threads.items() if name == ENGINE},
            "threads": {thread: seconds for thread, (name, seconds) in threads.items() if name != ENGINE},
            "exit": self._of_role(EXIT),
            "seeder": self._of_role(SEEDER),
        }

    def _of_role(self, role: str) -> dict[int, float]:
        return {node.pid: cpu_seconds(node.pid) for node in self._run.with_role(role) if node.pid is not None}


def _threads(pid: int) -> dict[int, tuple[str, float]]:
    """Yield the name and CPU seconds of each (Documentation/scheduler/sched-stats.rst)."""
    return {
        int(path.name): ((path / "comm").read_text().strip(), int((path / "schedstat").read_text().split()[0]) / 1e9)
        for path in Path(f"/proc/{pid}/task").iterdir()
    }
