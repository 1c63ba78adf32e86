"""An exit looks up the names that streams are to lead to."""

import asyncio
import logging

from tunnel_pool.overlay.serving.circuit_names import TooManyNamesError, is_refused_name
from tunnel_pool.overlay.serving.exit_socket import ExitPolicy
from tunnel_pool.rpc.drop_reasons import DropReason

logger = logging.getLogger(__name__)


class StreamNames:
    """Looks names up for the engine, which has asked whether they may be."""

    def __init__(self, policy: ExitPolicy) -> None:
        self._policy = policy
        self._lookups: set[asyncio.Task[str | None]] = set()

    def look_up(self, name: str, circuit_id: int) -> "asyncio.Future[str | None]":
        """Return the IP address of a name in a while, None when there is none or it is not looked up here."""
        task = asyncio.get_running_loop().create_task(self._look_up(name, circuit_id))
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)
        return task

    def close(self) -> None:
        for task in self._lookups:
            task.cancel()

    async def _look_up(self, name: str, circuit_id: int) -> str | None:
        address, reason = await self._found(name, circuit_id)
        if address is None:
            self._policy.counters[reason] += 1
        return address

    async def _found(self, name: str, circuit_id: int) -> tuple[str | None, DropReason]:
        """Return the address, and why there is none."""
        policy, exit_socket = self._policy, self._policy.exit_sockets.get(circuit_id)
        is_refused = is_refused_name(name, policy.allow_private, policy.exit_source.device)
        if exit_socket is None or is_refused or not policy.exit_protocols():
            return None, DropReason.EXIT_NAME_REFUSED
        try:
            addresses = policy.exit_source.reached(await exit_socket.names.look_up(name))
        except TooManyNamesError:
            return None, DropReason.EXIT_TOO_MANY_NAMES
        except (OSError, UnicodeError):
            addresses = []
        return next(iter(addresses), None), DropReason.EXIT_NAME_UNKNOWN
