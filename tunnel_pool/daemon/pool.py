"""The pool in its owner's hands: another number of children, and a child that is to go."""

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.server.api import model
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pool.scaling import RunningScaler, WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.scaler import keep_scaled
from tunnel_pool.tunnels import NodeOptions

NO_POOL = "there are no children here: start the daemon with --workers"


class PoolControl:
    def __init__(self, tunnels: Tunnels, options: NodeOptions) -> None:
        self._tunnels = tunnels
        self._options = options

    def workers(self) -> model.Workers | None:
        if not isinstance(self._tunnels, PooledTunnelCommunity):
            return None
        scaler = self._tunnels.scaler
        least, most = scaler.workers if scaler is not None else self._options.workers
        return model.Workers(least=least, most=most)

    def scale(self, least: int, most: int) -> None:
        """Keep so many children from now on, started or drained one a second. Raises RequestError."""
        if least > most:
            raise RequestError("the least number of workers is greater than the most")
        if least < 1:
            raise RequestError("to run without children, restart the daemon with --workers 0")
        community = self._pooled()
        if community.port is None and most > self._options.workers.most:
            raise RequestError(f"with a port for each, there may be no more than {self._options.workers.most}")
        self._scaler(WorkerRange(least, most))

    def drain(self, slot: int) -> None:
        """Give a child nothing new, so that it ends; another follows where so many are wanted. Raises RequestError."""
        community = self._pooled()
        record = community.pool.records.get(slot)
        if record is None or record.state is not ChildState.RUNNING:
            raise RequestError("no child with this number is at work")
        (community.scaler or self._scaler(self._options.workers)).drain(slot)

    def _pooled(self) -> PooledTunnelCommunity:
        """Raises RequestError."""
        if not isinstance(self._tunnels, PooledTunnelCommunity):
            raise RequestError(NO_POOL)
        return self._tunnels

    def _scaler(self, workers: WorkerRange) -> RunningScaler:
        """Raises RequestError."""
        community = self._pooled()
        keep_scaled(community, workers, circuits_follow=not self._options.circuits)
        if community.scaler is None:
            raise RequestError("the daemon is ending")
        return community.scaler
