"""One run: a scenario carried out on nodes of its own, and what was measured meanwhile."""

import asyncio
import contextlib
import inspect
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.nodes.links import NO_LINKS, Links
from tunnel_pool.gumby_experiments.nodes.nodes import Node
from tunnel_pool.gumby_experiments.nodes.sampler import Sampler
from tunnel_pool.gumby_experiments.plan import verb_lookup
from tunnel_pool.gumby_experiments.plan.config import Experiment, Value, scenario_of
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.scenario import Line, peers_of_roles
from tunnel_pool.private_swarm.swarm import make_folder
from tunnel_pool.system.errors import UserError

FOLDER_PREFIX = "tunnel-pool-experiment-"
WATCH_S = 0.5


class Run:
    """Holds what verbs work with during one run.

    `metrics` becomes its row of runs.csv, `tables` rows of tables by their name, `events` what
    happened when. `random` depends on the experiment's seed and the run's number alone.
    """

    def __init__(self, experiment: Experiment, factors: dict[str, Value], number: int, links: Links = NO_LINKS) -> None:
        self.experiment = experiment
        self.factors = factors
        self.number = number
        self.random = random.Random(f"{experiment.seed}/{number}")
        self.links = links
        self.roles = dict(peers_of_roles(experiment.nodes))
        self.nodes: dict[int, Node] = {}
        self.metrics: dict[str, Any] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self.on_event: Callable[[str], None] = lambda text: None
        self.sampler = Sampler(lambda: list(self.nodes.values()))
        self._start_s = time.monotonic()
        self.folder: Path

    def setting(self, name: str) -> Value:
        """Return the value of what the experiment sets or varies."""
        return self.factors[name] if name in self.factors else self.experiment.set[name]

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._start_s

    def happened(self, what: str, node: int | None = None) -> None:
        self.events.append({"time_s": round(self.now_s(), 2), "node": node, "event": what})
        self.on_event(what)

    def add_row(self, table: str, **columns: Any) -> None:
        self.tables.setdefault(table, []).append(columns)

    def node(self, number: int, place: int | None = None) -> Node:
        """Return a node, made when it is asked for first; it runs when it is started. Raises RunError.

        `place`: the number of another node, at whose address and behind whose link it is made.
        """
        if number not in self.roles:
            raise RunError(f"there is no node {number}; the experiment has {len(self.roles)}")
        if number not in self.nodes:
            host, enter = self.links.place(place or number)
            folder = self.folder / f"node-{number}"
            self.nodes[number] = Node(number, self.roles[number], host, folder, enter)
        return self.nodes[number]

    def another(self, number: int) -> Node:
        """Put a new node in the place of one that has ended, so that it can be started anew."""
        if number in self.nodes and self.nodes[number].pid is None:
            del self.nodes[number]
        return self.node(number)

    def with_role(self, role: str) -> list[Node]:
        """Return the nodes of a role that run."""
        return [node for node in self.nodes.values() if node.role == role and node.pid is not None]

    async def carry_out(self) -> None:
        """Carry the scenario out from its first line to its last; then everything has ended. Raises UserError."""
        scenario = scenario_of(self.experiment, self.factors)
        verb_lookup.check(scenario)
        modules: list[Any] = []
        self.folder = make_folder(FOLDER_PREFIX)
        try:
            modules += [make(self) for make in verb_lookup.load_modules(scenario)]
            async with asyncio.timeout(self.experiment.timeout_s):
                await self._while_nodes_live(self._perform(scenario.lines, modules))
        except TimeoutError:
            raise RunError(f"not done after {self.experiment.timeout_s} s") from None
        finally:
            await self._close(modules)

    async def _perform(self, lines: Sequence[Line], modules: Sequence[Any]) -> None:
        stood_still_s, start_s = 0.0, time.monotonic()
        for line in lines:
            await asyncio.sleep(max(0.0, line.at_s - (time.monotonic() - start_s - stood_still_s)))
            begun_s = time.monotonic()
            verb = verb_lookup.find_verb(modules, line)
            of_nodes = [(number,) for number in self.roles if number in line.peers]
            for node in of_nodes if verb_lookup.is_of_a_node(verb) else [()]:
                await self._do(line, verb, node)
            stood_still_s += time.monotonic() - begun_s

    async def _do(self, line: Line, verb: Callable[..., Any], node: tuple[int, ...]) -> None:
        """Raises UserError; whatever else goes wrong in a verb ends this run, and no other."""
        try:
            result = verb(*node, *line.arguments, **line.named)
            if inspect.isawaitable(result):
                await result
        except UserError:
            raise
        except Exception as error:
            for each in self.nodes.values():
                each.check()  # that a node has ended is the better reason to give
            raise RunError(f"{line.where}: {line.verb}: {type(error).__name__}: {error}") from error

    async def _while_nodes_live(self, work: Any) -> None:
        """Await the work and take samples. Raises RunError as soon as a node ends that should not, or links do."""
        loop = asyncio.get_running_loop()
        working, sampling = loop.create_task(work), loop.create_task(self.sampler.run())
        try:
            while not working.done():
                await asyncio.wait([working, sampling], timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
                if sampling.done():
                    await sampling
                self.links.check()
                for node in self.nodes.values():
                    node.check()
            await working
            self.sampler.sample()  # a run may be shorter than a second
        finally:
            for task in (working, sampling):
                task.cancel()
            await asyncio.gather(working, sampling, return_exceptions=True)

    async def _close(self, modules: Sequence[Any]) -> None:
        """End everything, however the run ended."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, self.folder, ignore_errors=True)
            stack.push_async_callback(self._stop_nodes)
            for module in modules:
                if hasattr(module, "close"):
                    stack.push_async_callback(module.close)

    async def _stop_nodes(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
