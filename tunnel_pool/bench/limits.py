"""Measures how well a node's limits hold: an exit of several children, and eight greedy circuits through it.

An originator of ours in this process sends over each circuit to a socket of
its own, half as much again as the limit allows in all. The latency below the
limit is that of datagrams at half the limit, beside the same with no limit at all.
"""

from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness.load import CIRCUITS, MB, Result, open_world
from tunnel_pool.overlay.serving.rate_limits import Limits, Rates

RATES_MB = (1, 10, 50)
CHILDREN = (1, 2, 4)
LATENCY_S = 2.0


async def measure(seconds: float) -> Result:
    """Measure the rate got, in all and by circuit, for each number of children and each limit. Raises UserError."""
    limits: list[Result] = []
    latency: Result = {}
    for children in CHILDREN:
        async with open_world(children) as world:
            for rate in RATES_MB:
                world.memory.set(Limits(exited=Rates(up=rate * MB)))
                measured = await world.load.greedy(rate * MB, seconds)
                limits.append({"children": children, "limit_mb_per_s": rate, **measured})
            if children == CHILDREN[-1]:
                rate = RATES_MB[1] * MB
                for name, limit in (("unlimited", Limits()), ("below the limit", Limits(exited=Rates(up=rate)))):
                    world.memory.set(limit)
                    latency[name] = await world.load.latency(rate / 2, LATENCY_S)
    return {"limits": limits, "latency": latency}


def describe(result: Result) -> str:
    console = Console(width=100)
    table = Table(title=f"Limits, {CIRCUITS} greedy circuits through an exit")
    for column in ("children", "limit MB/s", "got MB/s", "of limit", "Jain's fairness"):
        table.add_column(column, justify="right")
    for row in result["limits"]:
        got = f"{row['mb_per_s']:.2f}", f"{row['of_limit']:.1%}", f"{row['jain']:.4f}"
        table.add_row(str(row["children"]), str(row["limit_mb_per_s"]), *got)
    lines = [
        f"latency {name}: median {took['median_ms']:.2f} ms, p99 {took['p99_ms']:.2f} ms"
        for name, took in result["latency"].items()
    ]
    with console.capture() as captured:
        console.print(table)
    return "\n".join([captured.get(), *lines])
