"""The simulation beside what was measured here, and what it says of machines that are not here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from tunnel_pool.gumby_experiments.results import figures
from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import RUN, Results
from tunnel_pool.gumby_experiments.simulation import (
    CORES,
    Costs,
    Machine,
    ScalabilityLaw,
    calibrated,
    fit_law,
    number_for,
    predict,
)

PREDICTED, CHECKED = "predicted", "checked"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CALIBRATES_EVERY = 2  # every second round calibrates the law, the others check it
PER_SEEDER = 8  # chunks of a seeder that are on the way at a time
PER_PROCESS = 4  # on machines that are not here: enough to keep each busy
WELL = 0.15
ALIKE = 1.01  # below this ratio of highest to lowest no law can be seen


def derive(results: Results) -> None:
    """Make tables of what the simulation says: `checked` against runs that did not calibrate it, `predicted`."""
    runs = results.runs
    calibrates = runs[RUN] % CALIBRATES_EVERY == 0
    calibration, others = runs[calibrates], runs[~calibrates]
    if calibration.empty:
        return
    costs = {int(workers): _costs(rows) for workers, rows in calibration.groupby("workers")}
    fewest = min(costs)
    measured = float(calibration[calibration["workers"] == fewest]["mean_mb_per_s"].median())
    nodes, cores = results.experiment.nodes, int(results.provenance["machine"]["cores"])
    helpers = max(1, int(calibration["helper_threads"].median()))
    here = Machine(fewest, cores, nodes["seeder"], nodes["exit"], PER_SEEDER * nodes["seeder"], helpers)
    here = calibrated(costs[fewest], here, measured)
    results.tables[CHECKED] = pd.DataFrame(_check(others, costs, here))
    results.tables[PREDICTED] = pd.DataFrame(_predict_all(costs, here))


def _costs(rows: pd.DataFrame) -> Costs:
    return Costs(*(float(rows[f"{name}_s_per_gb"].median()) for name in Costs._fields))


def _check(runs: pd.DataFrame, costs: dict[int, Costs], here: Machine) -> Iterator[dict[str, Any]]:
    for workers, rows in runs.groupby("workers"):
        if int(workers) not in costs:  # none of its calibrating runs gave a result
            continue
        predicted = predict(costs[int(workers)], here._replace(workers=int(workers)))
        measured = float(rows["mean_mb_per_s"].median())
        yield {
            "workers": int(workers), "measured_mb_per_s": measured, "predicted_mb_per_s": predicted.mb_per_s,
            "error": predicted.mb_per_s / measured - 1, "bottleneck": predicted.bottleneck,
            "delay_ms": round(1000 * here.delay_s, 2), "runs": len(rows),
        }  # fmt: skip


def _predict_all(costs: dict[int, Costs], here: Machine) -> Iterator[dict[str, Any]]:
    """Predict the speed on other machines, where only processes and cores limit it."""
    of_many = costs[max(costs)]
    for cores in SIZES:
        for workers in SIZES:
            seeders = max(here.seeders, workers)  # all chunks of one seeder pass one worker
            on_the_way = PER_PROCESS * (workers + seeders + here.exits)
            machine = here._replace(workers=workers, cores=cores, seeders=seeders, on_the_way=on_the_way, delay_s=0.0)
            predicted = predict(of_many, machine)
            yield {
                "workers": workers, "cores": cores, "mb_per_s": round(predicted.mb_per_s, 2),
                "bottleneck": predicted.bottleneck, "cores_busy": round(predicted.busy[CORES], 3),
            }  # fmt: skip


def _by_workers(predicted: pd.DataFrame) -> pd.Series:
    """Return what each number of workers reaches on the most cores."""
    return predicted[predicted["cores"] == max(SIZES)].set_index("workers")["mb_per_s"]


def _by_cores(predicted: pd.DataFrame) -> pd.Series:
    """Return what each number of cores reaches with the workers that suit it best."""
    return predicted.groupby("cores")["mb_per_s"].max()


def _law(reached: pd.Series) -> ScalabilityLaw:
    return fit_law(reached.index.tolist(), reached.tolist())


def findings(results: Results) -> Iterator[str]:
    if PREDICTED not in results.tables:
        return
    for _, row in results.table(CHECKED).iterrows():
        verdict = "within" if abs(row["error"]) <= WELL else "NOT within"
        measured, foretold = number(row["measured_mb_per_s"]), number(row["predicted_mb_per_s"])
        yield (
            f"{row['workers']} worker(s) here: measured {measured} MB/s (median of {row['runs']}), predicted "
            f"{foretold} ({row['error']:+.1%}, {verdict} {WELL:.0%}); what holds it back: {row['bottleneck']}."
        )
    yield (
        "Every second round of runs calibrates the simulation: costs for each number of workers, and the delay so that "
        "it is as fast as the fewest workers were. So for these the check says that runs repeat themselves; for more "
        "workers it is a prediction."
    )
    predicted = results.table(PREDICTED)
    for cores, rows in predicted.groupby("cores"):
        best = rows.sort_values(["mb_per_s", "workers"], ascending=[False, True]).iloc[0]
        enough = rows[rows["mb_per_s"] >= 0.95 * best["mb_per_s"]]["workers"].min()
        yield (
            f"{cores} core(s): {number(best['mb_per_s'])} MB/s at best; {enough} worker(s) reach 95 % of it. "
            f"What holds it back: {best['bottleneck']}."
        )
    yield f"Universal Scalability Law by workers, on {max(SIZES)} cores: {_words(_by_workers(predicted))}."
    yield f"Universal Scalability Law by cores, with the workers that suit them: {_words(_by_cores(predicted))}."
    yield (
        "For other machines it leaves out the delays that it was calibrated with, and knows no caches and no memory "
        "bandwidth: an upper bound."
    )


def _words(reached: pd.Series) -> str:
    """Return the law that is fitted to it, and how well."""
    most = int(reached.index.max())
    law = _law(reached)
    fitted = f"{number(law.rate)} MB/s for one, contention {law.contention:.3f}, coherency {law.coherency:.2g}"
    if reached.max() <= ALIKE * reached.min():
        return f"{fitted}; one reaches what {most} reach"
    turns = f"the most is at {number(law.best_number)}" if law.best_number < most else f"more do not harm up to {most}"
    explained = law.explains(reached.index.tolist(), reached.tolist())
    return (
        f"{fitted}; {number(number_for(law, 0.9, most))} give 90 % of what {most} give by it, {turns}. "
        f"It explains {explained:.0%} of what the simulation says (R²)"
    )


def draw(results: Results, folder: Path) -> list[str]:
    if PREDICTED not in results.tables:
        return []
    predicted = results.table(PREDICTED)
    picture, axes = figures.new_figure()
    for place, (cores, rows) in enumerate(predicted.groupby("cores")):
        axes.plot(rows["workers"], rows["mb_per_s"], "o-", markersize=3, color=figures.COLOURS[place], label=str(cores))
    law = _law(_by_workers(predicted))
    axes.plot(SIZES, [law.throughput(workers) for workers in SIZES], "k--", linewidth=1, label="law, all cores")
    checked = results.table(CHECKED)
    if not checked.empty:
        axes.plot(checked["workers"], checked["measured_mb_per_s"], "r*", markersize=10, label="measured here")
    axes.set(xscale="log", xlabel="workers", ylabel="download, MB/s", ylim=(0, None))
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_title("Predicted by workers, for so many cores", fontsize=10)
    axes.legend(title="cores", fontsize=8)
    axes.grid(alpha=0.25)
    figures.save(picture, folder, "predicted")
    return ["predicted"]
