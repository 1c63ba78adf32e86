"""Simulates a download: chunks go from seeders over exits and workers to the session, and compete for cores. Pure.

Every process does one thing at a time, and needs a core to do it; a core that nobody needs is idle. What
a chunk costs each of them is measured (`Costs`). So many chunks are on their way at a time, uTP's windows, and each
takes some time beside what it costs: for acknowledgements, queues and the scheduler.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import simpy
from scipy.optimize import brentq, curve_fit

CHUNK_BYTES = 1 << 18
CHUNKS = 1500
WARM_UP = 0.2  # the first share of the chunks, which is not counted
SESSION, SESSION_HELPERS, WORKER, EXIT, SEEDER = "session", "session's other threads", "workers", "exits", "seeders"
CORES = "cores"
WINDOW = "windows"
BUSY = 0.9  # the share of the time from which a process counts as a bottleneck


class Costs(NamedTuple):
    """Holds CPU seconds a GB: `session` is the session's busiest thread, `helpers` all others, which run beside it."""

    session: float
    helpers: float
    worker: float
    exit: float
    seeder: float

    @property
    def total(self) -> float:
        return sum(self)


class Machine(NamedTuple):
    """Describes a machine. `on_the_way`: chunks at a time; `delay_s`: what each takes beside its costs.

    Without workers a thread of the session's process does their work.
    """

    workers: int
    cores: int
    seeders: int
    exits: int
    on_the_way: int
    helper_threads: int = 1
    delay_s: float = 0.0


class Predicted(NamedTuple):
    """Holds a prediction; `busy` is the share of the time of each kind's busiest process, and of all cores together."""

    mb_per_s: float
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        name, share = max(self.busy.items(), key=lambda item: item[1])
        return name if share >= BUSY else WINDOW


def predict(costs: Costs, machine: Machine, chunks: int = CHUNKS) -> Predicted:
    """Run it until so many chunks have come."""
    return _Simulation(costs, machine).run(chunks)


class _Simulation:
    def __init__(self, costs: Costs, machine: Machine) -> None:
        self._env = simpy.Environment()
        self._cores = simpy.Resource(self._env, machine.cores)
        self._machine = machine
        self._busy_s: dict[tuple[str, int], float] = defaultdict(float)
        self._counting_from_s = 0.0
        gb = CHUNK_BYTES / 1e9
        # Kind, how many processes, and seconds a chunk.
        self._stages = [
            (SEEDER, machine.seeders, costs.seeder * gb),
            (EXIT, machine.exits, costs.exit * gb),
            (WORKER, max(1, machine.workers), costs.worker * gb),
            (SESSION, 1, costs.session * gb),
            (SESSION_HELPERS, machine.helper_threads, costs.helpers * gb),
        ]
        self._processes = {
            kind: [simpy.Resource(self._env, 1) for _ in range(number)] for kind, number, _ in self._stages
        }

    def run(self, chunks: int) -> Predicted:
        arrived = 0
        warm_up = int(WARM_UP * chunks)
        done = self._env.event()

        def on_arrival() -> None:
            nonlocal arrived
            arrived += 1
            if arrived == warm_up:
                self._busy_s.clear()
                self._counting_from_s = self._env.now
            elif arrived == chunks:
                done.succeed()

        numbers = itertools.count()
        for _ in range(self._machine.on_the_way):
            self._env.process(self._carry(numbers, on_arrival))
        self._env.run(until=done)
        seconds = self._env.now - self._counting_from_s
        busy = {kind: max(self._busy_s[kind, at] for at in range(number)) / seconds for kind, number, _ in self._stages}
        busy[CORES] = sum(self._busy_s.values()) / seconds / self._machine.cores
        return Predicted((chunks - warm_up) * CHUNK_BYTES / 1e6 / seconds, busy)

    def _carry(self, numbers: Any, on_arrival: Callable[[], None]) -> Generator[Any, Any, None]:
        """Carry one chunk after the other, each of the next seeder.

        A destination keeps its circuit, so that all chunks of a seeder pass one exit and one worker.
        """
        while True:
            number = next(numbers)
            seeder = number % self._machine.seeders
            for kind, processes, seconds in self._stages:
                at = (number if kind == SESSION_HELPERS else seeder) % processes
                with self._processes[kind][at].request() as turn:
                    yield turn
                    with self._cores.request() as core:
                        yield core
                        yield self._env.timeout(seconds)
                        self._busy_s[kind, at] += seconds
            on_arrival()
            if self._machine.delay_s:
                yield self._env.timeout(self._machine.delay_s)


def calibrated(costs: Costs, machine: Machine, measured_mb_per_s: float) -> Machine:
    """Return the machine with the delay that makes the simulation as fast as measured; with 0 if it is slower."""

    def too_fast(delay_s: float) -> float:
        return predict(costs, machine._replace(delay_s=delay_s)).mb_per_s - measured_mb_per_s

    longest_s = 2 * machine.on_the_way * CHUNK_BYTES / 1e6 / measured_mb_per_s
    if too_fast(0.0) <= 0:
        return machine._replace(delay_s=0.0)
    return machine._replace(delay_s=float(brentq(too_fast, 0.0, longest_s, xtol=longest_s / 1000)))


class ScalabilityLaw(NamedTuple):
    """N. J. Gunther's Universal Scalability Law, X(n) = rate n / (1 + contention (n - 1) + coherency n (n - 1))."""

    rate: float
    contention: float
    coherency: float

    def throughput(self, number: float) -> float:
        return self.rate * number / (1 + self.contention * (number - 1) + self.coherency * number * (number - 1))

    @property
    def best_number(self) -> float:
        """Return the number of workers beyond which more are slower; infinite without coherency."""
        return float(np.sqrt((1 - self.contention) / self.coherency)) if self.coherency > 0 else float("inf")

    def explains(self, numbers: list[float], throughputs: list[float]) -> float:
        """Return the coefficient of determination: 1 when the law says it all, 0 when a mean says as much."""
        seen = np.asarray(throughputs, dtype=float)
        foretold = np.asarray([self.throughput(number) for number in numbers])
        spread = float(((seen - seen.mean()) ** 2).sum())
        return 1 - float(((seen - foretold) ** 2).sum()) / spread if spread else 1.0


def fit_law(numbers: list[float], throughputs: list[float]) -> ScalabilityLaw:
    """Fit the law to three points or more, by least squares."""

    def law(number: Any, rate: float, contention: float, coherency: float) -> Any:
        return ScalabilityLaw(rate, contention, coherency).throughput(number)

    found, _ = curve_fit(
        law, np.asarray(numbers, dtype=float), np.asarray(throughputs, dtype=float),
        p0=(throughputs[0] / numbers[0], 0.1, 1e-4), bounds=((0, 0, 0), (np.inf, 1, 1)), maxfev=20_000,
    )  # fmt: skip
    return ScalabilityLaw(*(float(value) for value in found))


def number_for(law: ScalabilityLaw, share: float, most: float) -> float:
    """Return with how many workers the law gives this share of what it gives with `most`."""
    goal = share * law.throughput(most)
    return float(brentq(lambda number: law.throughput(number) - goal, 1.0, most)) if law.throughput(1) < goal else 1.0
