"""Marks that run a test on each engine and kind of tunnels; the slower combinations are marked `slow`."""

import pytest

_slow = pytest.mark.slow

# The slower packet path is a slow test.
ENGINES_PYTHON_SLOW = pytest.mark.parametrize("engine", ["native", pytest.param("python", marks=_slow)], indirect=True)

# Each kind of tunnels (tests.worlds.network.tunnels) on each packet path.
KINDS_AND_ENGINES = pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("plain", "native"),
        ("plain", "python"),
        ("pooled", "native"),
        pytest.param("pooled", "python", marks=_slow),
        pytest.param("ported", "native", marks=_slow),
        pytest.param("ported", "python", marks=_slow),
    ],
    indirect=["engine"],
)
