"""Tests how well a cell's length reveals the place of a relay in a circuit."""

import subprocess
import sys
from fractions import Fraction

import pytest

from tests.worlds.commands import ROOT
from tunnel_pool.gumby_experiments.cell_lengths import FIXED, FULL, MOST_DRAWS, PROBE, best_guess, cost


@pytest.mark.parametrize("draws", range(1, 30))
def test_a_draw_hides_the_place_from_who_sees_full_cells_alone(draws):
    """All places but two overlap: each draw more makes these two rarer."""
    assert best_guess((FULL,), draws) == min(Fraction(1), Fraction(draws + 2, 3 * draws))


@pytest.mark.parametrize("other", [FIXED, PROBE])
@pytest.mark.parametrize("draws", [1, MOST_DRAWS, 14, 1000])
def test_one_cell_more_whose_length_goes_otherwise_gives_it_away(other, draws):
    assert best_guess((FULL, other), draws) == 1


def test_what_it_costs():
    assert cost(1) == 0
    assert MOST_DRAWS == 7
    assert 0.05 < cost(MOST_DRAWS) < 0.06
    assert best_guess((FULL,), 14) - Fraction(1, 3) < 0.05 < best_guess((FULL,), 13) - Fraction(1, 3)


def test_the_table_is_printed():
    program = [sys.executable, "-m", "tunnel_pool.gumby_experiments.cell_lengths"]
    printed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "full cells alone, 7 draws: 42.9%, for 5.3% of each full cell\n" in printed
    assert "full cells, and probes of the path, 14 draws: 100.0%" in printed
