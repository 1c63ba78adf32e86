"""Numbers about numbers, by scipy and statsmodels: summaries, intervals, tests. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats
from statsmodels.stats.power import TTestIndPower

CONFIDENCE = 0.95
LEAST_POWER = 0.8


class Summary(NamedTuple):
    """Sums up a sample. With CONFIDENCE, the mean is between `low` and `high`; NaN of fewer than two values."""

    number: int
    mean: float
    sd: float
    least: float
    most: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary:
    """Summarize one value or more."""
    array = np.asarray(values, dtype=float)
    number, mean = len(array), float(array.mean())
    if number < 2:
        return Summary(number, mean, math.nan, mean, mean, math.nan, math.nan)
    sd = float(array.std(ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, number - 1)) * sd / math.sqrt(number)
    return Summary(number, mean, sd, float(array.min()), float(array.max()), mean - half, mean + half)


class Difference(NamedTuple):
    """Describes how two samples' means differ: Welch's t-test, Hedges' g, and what the test could have found."""

    t: float
    degrees: float
    p: float
    effect: float
    power: float

    @property
    def is_underpowered(self) -> bool:
        """Return whether a large effect (0.8 standard deviations) would likely have been missed."""
        return self.power < LEAST_POWER


LARGE_EFFECT = 0.8  # J. Cohen, Statistical Power Analysis, 1988


def welch(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare two samples; returns None for those that have fewer than two values, or do not vary at all."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if min(len(a), len(b)) < 2 or a.std() + b.std() == 0:
        return None
    found = stats.ttest_ind(b, a, equal_var=False)
    degrees = len(a) + len(b) - 2
    pooled = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / degrees)
    correction = 1 - 3 / (4 * degrees - 1)  # L. V. Hedges, Journal of Educational Statistics 6 (1981)
    effect = correction * (b.mean() - a.mean()) / pooled
    power = power_of_t_test(LARGE_EFFECT, len(a), len(b))
    return Difference(float(found.statistic), float(found.df), float(found.pvalue), float(effect), power)


def power_of_t_test(effect: float, first: int, second: int, alpha: float = 1 - CONFIDENCE) -> float:
    """Return how likely an effect of so many standard deviations is found in samples of these sizes, two-sided."""
    return float(TTestIndPower().power(effect, first, alpha, ratio=second / first))


def effect_in_words(effect: float) -> str:
    """Name the size of an effect by Cohen's conventions."""
    size = abs(effect)
    return "negligible" if size < 0.2 else "small" if size < 0.5 else "medium" if size < 0.8 else "large"
