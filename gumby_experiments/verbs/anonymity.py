"""A verb that runs the simulation of clients in a network of which a part is hostile."""

import asyncio
import random
import statistics

from tunnel_pool.gumby_experiments.anonymity import Placement, Rules, ask_for_rendezvous, make_world, use
from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_the_run


class AnonymityModule:
    def __init__(self, run: Run) -> None:
        self._run = run

    @of_the_run
    async def simulate(
        self, rules: str, size: str, hostile_percent: str, placement: str, *, hops: str, days: str, clients: str,
        circuits_a_day: str, requests: str,
    ) -> None:  # fmt: skip
        """Set the metrics of so many clients, each in a network of its own; the seed is the run's."""
        chosen, share = Rules(rules), float(hostile_percent) / 100
        rng = random.Random(self._run.random.random())

        def all_clients() -> None:
            metrics = self._run.metrics
            uses, asked = [], []
            for _ in range(int(clients)):
                world = make_world(int(size), share, Placement(placement), rng)
                uses.append(use(chosen, world, int(hops), days=int(days), circuits_a_day=int(circuits_a_day), rng=rng))
                if chosen is not Rules.TOR:  # Tor has hidden services of another kind
                    asked.append(ask_for_rendezvous(chosen, world, int(hops), int(requests), rng))
            metrics["both_ends_percent"] = 100 * statistics.mean(each.both_ends for each in uses)
            metrics["first_hops_met"] = statistics.median(each.first_hops for each in uses)
            metrics["exit_bits"] = round(statistics.mean(each.exit_bits for each in uses), 3)
            if not asked:
                return
            strangers = [each for each in asked if not each.is_guard]
            found = [each.until_found for each in strangers if each.until_found is not None]
            metrics["found_percent"] = 100 * len(found) / len(strangers) if strangers else 0.0
            metrics["requests_until_found"] = statistics.median(found) if found else 0
            metrics["relay_is_guard_percent"] = 100 * (1 - len(strangers) / len(asked))

        await asyncio.to_thread(all_clients)
