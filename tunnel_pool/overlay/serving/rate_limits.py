"""The rates at which a node's bytes may go, as its operator says. Pure."""

from dataclasses import dataclass
from typing import NamedTuple


class Rates(NamedTuple):
    """Holds bytes a second, each way; None is no limit."""

    up: int | None = None
    down: int | None = None


NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits the whole node by whose traffic it is, and each circuit, each direction by itself."""

    relayed: Rates = NO_RATES
    exited: Rates = NO_RATES
    own: Rates = NO_RATES
    total: Rates = NO_RATES
    circuit: Rates = NO_RATES
    max_delay_s: float = 0.2  # what has waited longer is dropped
    burst_s: float = 0.02  # how much of its rate, in time, an idle limit lets through at once
    queue_bytes: int = 256 << 10  # the most that may wait in one direction of a circuit

    def are_any(self) -> bool:
        return any(rates != NO_RATES for rates in (self.relayed, self.exited, self.own, self.total, self.circuit))
