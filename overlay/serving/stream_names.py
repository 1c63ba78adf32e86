"""An exit looks up the names that streams are to lead to."""

import asyncio
import logging
import socket

from tunnel_pool.overlay.serving.exit_socket import MAX_RESOLVING_IN_ALL, ExitPolicy
from tunnel_pool.rpc.drop_reasons import DropReason

logger = logging.getLogger(__name__)


class StreamNames:
    """Looks names up, so many at a time; the engine has asked whether their circuits may."""

    def __init__(self, policy: ExitPolicy) -> None:
        self._policy = policy
        self._lookups: set[asyncio.Task[str | None]] = set()

    def look_up(self, name: str) -> "asyncio.Future[str | None]":
        """Return the IP address of a name in a while, None when there is none or names are not looked up here."""
        task = asyncio.get_running_loop().create_task(self._look_up(name))
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)
        return task

    def close(self) -> None:
        for task in self._lookups:
            task.cancel()

    async def _look_up(self, name: str) -> str | None:
        policy = self._policy
        if policy.exit_source.device or not policy.exit_protocols():
            # The system's resolver would ask through any device.
            policy.counters[DropReason.EXIT_NAME_REFUSED] += 1
            return None
        if policy.resolving >= MAX_RESOLVING_IN_ALL:
            policy.counters[DropReason.EXIT_TOO_MANY_NAMES] += 1
            return None
        policy.resolving += 1
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            policy.counters[DropReason.EXIT_NAME_UNKNOWN] += 1
            return None
        finally:
            policy.resolving -= 1
        families = policy.exit_source.families
        addresses = [str(address[0]) for family, _, _, _, address in found if family in families]
        if not addresses:
            policy.counters[DropReason.EXIT_NAME_UNKNOWN] += 1
        return addresses[0] if addresses else None
