"""Says where a pool saturates, and where a datagram's time goes."""

from collections.abc import Iterator

from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import Results

SATURATED = 0.95  # the share of the highest speed seen that counts as saturated


def findings(results: Results) -> Iterator[str]:
    runs = results.runs
    if runs.empty:
        return
    for (steering, workers), rows in runs.groupby(["steering", "workers"]):
        means = rows.groupby("circuits")[["mb_per_s", "response_ms"]].mean()
        most = means["mb_per_s"].max()
        enough = means[means["mb_per_s"] >= SATURATED * most].index.min()
        yield (
            f"steering {steering}, {workers} worker(s): {number(most)} MB/s there and back at most, {SATURATED:.0%} of "
            f"it with {enough} circuit(s); an answer takes {number(means.loc[enough, 'response_ms'])} ms then, "
            f"{number(means['response_ms'].iloc[0])} ms over {means.index[0]} circuit(s)."
        )
    parts = results.table("breakdown")
    if parts.empty:
        yield "No breakdown: only root sees the packets on loopback."
        return
    for steering, rows in parts.groupby("steering"):
        medians = rows.groupby(["place", "part"])["median_us"].median()
        told = ", ".join(f"{part} {number(value)}" for (_, part), value in medians.items())
        yield f"steering {steering}, a datagram by itself, microseconds: {told}."
    yield (
        "With steering there is no stream: by what its engine takes less, the stream takes its time. "
        "A. Matusiak's text was not at hand; the method is ours: a closed loop with a window for each circuit."
    )
