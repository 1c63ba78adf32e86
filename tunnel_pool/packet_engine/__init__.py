"""The native packet path and its Python face; without it everything runs on overlay's Python path."""

from enum import Enum
from importlib.util import find_spec


class EngineChoice(Enum):
    """Lists the choices of `--engine`."""

    AUTO = "auto"
    NATIVE = "native"
    PYTHON = "python"


class EngineMissingError(Exception):
    """Says that the native engine was asked for and is not there, and what to do."""


def is_built() -> bool:
    return find_spec("tunnel_pool.packet_engine._native") is not None


SLOW = "The packet engine is the slow one, in Python: install Rust (https://rustup.rs) and install tunnel-pool again"


def choose(choice: EngineChoice) -> EngineChoice:
    """Return NATIVE or PYTHON. Raises EngineMissingError."""
    if choice is EngineChoice.AUTO:
        return EngineChoice.NATIVE if is_built() else EngineChoice.PYTHON
    if choice is EngineChoice.NATIVE and not is_built():
        raise EngineMissingError(
            "the native packet engine is not built; install Rust (https://rustup.rs) and run pip install again, "
            "or use --engine python"
        )
    return choice
