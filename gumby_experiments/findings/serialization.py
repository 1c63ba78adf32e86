"""Says which format is short, which is cheap, and whether simple formulas say what a message costs."""

from collections.abc import Iterator

import pandas as pd
from scipy import stats

from tunnel_pool.gumby_experiments.messages import FULL, SYNCHRONOUS
from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import Results

HOLDS = 0.9  # the share of the variance that a law must explain
BASE = "struct"


def findings(results: Results) -> Iterator[str]:
    runs = results.runs
    if runs.empty:
        return
    for mix, of_mix in runs.groupby("mix"):
        means = of_mix.groupby("format")["message_bytes"].mean().sort_values()
        yield f"{mix}: shortest is {_ranking(means, 'bytes')}."
        for mode, of_mode in of_mix.groupby("mode"):
            for side in ("sender", "receiver"):
                means = of_mode.groupby("format")[f"{side}_us"].mean().sort_values()
                yield f"{mix}, {mode}, {side}: cheapest is {_ranking(means, 'us')}."
        yield from _is_waiting_apart(str(mix), of_mix)
        yield from _packing_pays(str(mix), of_mix)
    yield from _linear(results.table("messages"))


def _ranking(means: pd.Series, unit: str) -> str:
    first, *others = [(name, value) for name, value in means.items()]
    told = ", ".join(f"{name} {value / first[1]:.2f} times" for name, value in others)
    return f"{first[0]} ({number(first[1])} {unit}), {told}"


def _is_waiting_apart(mix: str, runs: pd.DataFrame) -> Iterator[str]:
    """Check formula 1: a synchronous message costs as much as in a full buffer, plus a constant for waiting."""
    means = runs.groupby(["format", "mode"])["receiver_us"].mean().unstack()
    if not {SYNCHRONOUS, FULL} <= set(means.columns):
        return
    extra = means[SYNCHRONOUS] - means[FULL]
    spread = (extra.max() - extra.min()) / extra.mean()
    verdict = "holds" if spread < 1 - HOLDS else "holds roughly" if spread < 0.5 else "does not hold"
    yield (
        f'{mix}: "synchronous = full buffer + a constant" {verdict} for the receiver: the difference is '
        f"{number(extra.min())} to {number(extra.max())} us, by format."
    )


def _packing_pays(mix: str, runs: pd.DataFrame) -> Iterator[str]:
    """Check formula 2: packing pays if P + U <= (1 - |packed| / |raw|) T (Stokkink 2016, 3.1.2); raw is struct here.

    T is how long the raw message is on its way. As struct is made and read, too, P + U is what a format costs more.
    """
    full = runs[runs["mode"] == FULL].groupby("format")[["message_bytes", "sender_us", "receiver_us"]].mean()
    if BASE not in full.index:
        return
    raw = full.loc[BASE]
    for name, packed in full.drop(index=BASE).iterrows():
        shorter = 1 - packed["message_bytes"] / raw["message_bytes"]
        more_us = packed["sender_us"] + packed["receiver_us"] - raw["sender_us"] - raw["receiver_us"]
        size = f"{shorter:.0%} shorter" if shorter > 0 else f"{-shorter:.0%} longer"
        price = f"its messages are {size}, and cost {number(abs(more_us))} us {'more' if more_us > 0 else 'less'}"
        if (shorter > 0) == (more_us < 0):
            told = f"{'always' if shorter > 0 else 'never'} pays: {price}"
        else:
            mbit_s = raw["message_bytes"] * 8 / (more_us / shorter)
            told = f"pays {'below' if shorter > 0 else 'above'} {number(mbit_s)} Mbit/s: {price}"
        yield f"{mix}: by (P + U) <= (1 - |packed|/|raw|) T, {name} instead of {BASE} {told}."


def _linear(messages: pd.DataFrame) -> Iterator[str]:
    """Check formula 3: the cost is a constant plus a constant for each byte."""
    if messages.empty:
        return
    for format_name, rows in messages.groupby("format"):
        means = rows.groupby("message")[["message_bytes", "encode_us", "decode_us"]].mean()
        for what in ("encode", "decode"):
            line = stats.linregress(means["message_bytes"], means[f"{what}_us"])
            verdict = "holds" if line.rvalue**2 >= HOLDS else "does not hold"
            yield (
                f'{format_name}: "a constant and so much a byte" {verdict} for {what} (R² = {line.rvalue**2:.2f}): '
                f"{number(line.intercept)} us and {number(line.slope * 1000)} ns a byte."
            )
