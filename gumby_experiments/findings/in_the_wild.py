"""One process against pools: Welch's t-test, as in the thesis, with what it leaves out there: effects and power."""

from collections.abc import Iterator

from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import Results
from tunnel_pool.gumby_experiments.results.statistics import Difference, effect_in_words, welch

ALPHA = 0.05
COMPARED = {
    "mean_mb_per_s": "download speed",
    "downloader_cpu_percent": "CPU",
    "downloader_cpu_percent_per_kb_s": "CPU per KB/s",
}


def findings(results: Results) -> Iterator[str]:
    runs = results.runs
    if runs.empty:
        return
    underpowered = False
    for cores, on_cores in runs.groupby("cores"):
        single = on_cores[on_cores["workers"] == 0]
        for workers, pooled in on_cores[on_cores["workers"] > 0].groupby("workers"):
            for metric, name in COMPARED.items():
                before, after = single[metric].dropna(), pooled[metric].dropna()
                if before.empty or after.empty:
                    continue
                found = welch(before.tolist(), after.tolist())
                underpowered |= found is None or found.is_underpowered
                change = f"{name} {after.mean() / before.mean() - 1:+.0%}"
                yield f"{cores} core(s), {workers} worker(s) against one process: {change}, {_verdict(found)}."
    if underpowered:
        yield (
            "Underpowered: with so few runs a test finds a large effect (0.8 standard deviations) less often than four "
            "times in five; the power beside each says how often. What is not significant here is not shown to be "
            "equal; take --runs 26 or more."
        )


def _verdict(found: Difference | None) -> str:
    if found is None:
        return "too few runs for a test"
    verdict = "significant" if found.p < ALPHA else "not significant"
    test = f"Welch's t({number(found.degrees)}) = {found.t:.2f}, p = {found.p:.2g}"
    effect = f"Hedges' g {found.effect:+.2f}, {effect_in_words(found.effect)}"
    return f"{verdict} ({test}; {effect}; power for a large effect {found.power:.2f})"
