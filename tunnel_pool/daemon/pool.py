"""The pool in its owner's hands: another number of children, and a child that is to go."""

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pool.scaling import WorkerRange

NO_POOL = "there are no children here: start the daemon with --workers"


class PoolControl:
    def __init__(self, tunnels: Tunnels) -> None:
        self._pool, self._scaling = tunnels.pool, tunnels.scaling

    def workers(self) -> WorkerRange | None:
        return self._scaling.workers if self._scaling is not None else None

    def scale(self, least: int, most: int) -> None:
        """Keep so many children from now on, started or drained one a second. Raises RequestError."""
        if least > most:
            raise RequestError("the least number of workers is greater than the most")
        if least < 1:
            raise RequestError("to run without children, restart the daemon with --workers 0")
        if self._scaling is None:
            raise RequestError(NO_POOL)
        try:
            self._scaling.scale(WorkerRange(least, most))
        except ValueError as error:
            raise RequestError(str(error)) from None

    def drain(self, slot: int) -> None:
        """Give a child nothing new, so that it ends; another follows where so many are wanted. Raises RequestError."""
        if self._pool is None or self._scaling is None:
            raise RequestError(NO_POOL)
        record = self._pool.records.get(slot)
        if record is None or record.state is not ChildState.RUNNING:
            raise RequestError("no child with this number is at work")
        try:
            self._scaling.drain(slot)
        except ValueError as error:
            raise RequestError(str(error)) from None
