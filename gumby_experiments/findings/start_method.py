"""Says which start method is smaller, and which is sooner at work."""

from collections.abc import Iterator

from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import Results

COMPARED = {
    "child_uss_mb": ("memory that is a child's alone", "MB"),
    "all_children_s": ("until all children are ready", "s"),
    "added_child_s": ("until an added child has a circuit", "s"),
}


def findings(results: Results) -> Iterator[str]:
    pools = results.table("pools")
    if pools.empty:
        return
    for workers, rows in pools.groupby("workers"):
        means = rows.groupby("start_method")[list(COMPARED)].mean()
        for column, (what, unit) in COMPARED.items():
            spawn, forkserver = means.loc["spawn", column], means.loc["forkserver", column]
            yield (
                f"{workers} worker(s), {what}: spawn {number(spawn)} {unit}, forkserver {number(forkserver)} {unit} "
                f"({forkserver / spawn:.2f} times)."
            )
