"""Tests the simulation on cases with a known result, and the scalability law fitted to it."""

from itertools import pairwise

import pytest

from tunnel_pool.gumby_experiments.simulation import (
    CORES,
    SESSION,
    WINDOW,
    WORKER,
    Costs,
    Machine,
    ScalabilityLaw,
    calibrated,
    fit_law,
    number_for,
    predict,
)

MANY = Machine(workers=4, cores=64, seeders=4, exits=4, on_the_way=64)


@pytest.mark.parametrize(
    ("costs", "machine", "mb_per_s", "bottleneck"),
    [
        # One process that does one thing at a time: a GB takes what it costs.
        (Costs(4.0, 0.1, 0.1, 0.1, 0.1), MANY, 250, SESSION),
        # Four workers share theirs.
        (Costs(0.1, 0.1, 8.0, 0.1, 0.1), MANY, 500, WORKER),
        (Costs(0.1, 0.1, 8.0, 0.1, 0.1), MANY._replace(workers=1), 125, WORKER),
        # A destination keeps its circuit: four seeders occupy four workers, however many there are.
        (Costs(0.1, 0.1, 8.0, 0.1, 0.1), MANY._replace(workers=16), 500, WORKER),
        # Two cores, and ten seconds of work a GB.
        (Costs(2.0, 2.0, 2.0, 2.0, 2.0), MANY._replace(cores=2), 200, CORES),
        # One chunk at a time takes all steps one after the other, whatever there is.
        (Costs(1.0, 1.0, 1.0, 1.0, 1.0), MANY._replace(on_the_way=1), 200, WINDOW),
    ],
)
def test_what_is_known_is_predicted(costs, machine, mb_per_s, bottleneck):
    predicted = predict(costs, machine)
    assert predicted.mb_per_s == pytest.approx(mb_per_s, rel=0.03)
    assert predicted.bottleneck == bottleneck
    assert all(share <= 1.01 for share in predicted.busy.values())


def test_more_workers_or_cores_never_slow_it_down():
    costs = Costs(1.2, 2.0, 3.0, 1.5, 4.0)
    speeds = [predict(costs, MANY._replace(workers=n, cores=8)).mb_per_s for n in (1, 2, 4, 8)]
    assert all(later >= 0.98 * sooner for sooner, later in pairwise(speeds))
    speeds = [predict(costs, MANY._replace(cores=n)).mb_per_s for n in (1, 2, 4, 8)]
    assert all(later >= 0.98 * sooner for sooner, later in pairwise(speeds))


def test_calibrated_it_is_as_fast_as_was_measured():
    costs = Costs(1.2, 2.0, 1.2, 1.5, 4.0)
    machine = MANY._replace(cores=2, on_the_way=32)
    assert predict(costs, machine).mb_per_s > 150
    slower = calibrated(costs, machine, 87.0)
    assert predict(costs, slower).mb_per_s == pytest.approx(87, rel=0.03)
    assert calibrated(costs, machine, 10_000.0).delay_s == 0


def test_the_law_is_found_again():
    law = ScalabilityLaw(rate=40.0, contention=0.05, coherency=0.002)
    numbers = [1, 2, 4, 8, 16, 32]
    found = fit_law(numbers, [law.throughput(number) for number in numbers])
    assert found == pytest.approx(law, rel=0.02)
    assert found.best_number == pytest.approx((0.95 / 0.002) ** 0.5, rel=0.02)
    assert law.throughput(number_for(law, 0.9, 16)) == pytest.approx(0.9 * law.throughput(16))
    assert ScalabilityLaw(10.0, 0.1, 0.0).best_number == float("inf")


def test_how_much_a_law_explains():
    law = ScalabilityLaw(rate=40.0, contention=0.05, coherency=0.002)
    numbers = [1, 2, 4, 8]
    exactly = [law.throughput(number) for number in numbers]
    mean = sum(exactly) / len(exactly)
    assert law.explains(numbers, exactly) == 1.0
    assert law.explains(numbers, [2 * mean - each for each in exactly]) < 0
    beside = [each + error for each, error in zip(exactly, (1, -1, 1, -1), strict=True)]
    spread = sum((each - sum(beside) / 4) ** 2 for each in beside)
    assert law.explains(numbers, beside) == pytest.approx(1 - 4 / spread)
