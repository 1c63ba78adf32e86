"""An exit looks up the names that streams are to lead to."""

import asyncio
import logging
import socket
from collections import Counter
from typing import Any

from tunnel_pool.overlay.serving.exit_socket import ExitPolicy
from tunnel_pool.overlay.serving.inner_names import is_inner_name
from tunnel_pool.overlay.serving.resolver import MAX_RESOLVING, MAX_RESOLVING_IN_ALL, MAX_RESOLVING_OF_HOP, look_up
from tunnel_pool.rpc.drop_reasons import DropReason

logger = logging.getLogger(__name__)


class StreamNames:
    """Looks names up, so many at a time of each circuit and previous hop; the engine has asked whether they may."""

    def __init__(self, policy: ExitPolicy) -> None:
        self._policy = policy
        self._of_circuit: Counter[int] = Counter()  # look-ups that are under way
        self._of_hop: Counter[str] = Counter()
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

    def _refusal(self, name: str, circuit_id: int, hop: str) -> DropReason | None:
        policy = self._policy
        # The system's resolver would ask through any device.
        is_able = not policy.exit_source.device and policy.exit_protocols()
        if not is_able or (is_inner_name(name) and not policy.allow_private):
            return DropReason.EXIT_NAME_REFUSED
        is_too_many = (
            policy.resolving >= MAX_RESOLVING_IN_ALL
            or self._of_circuit[circuit_id] >= MAX_RESOLVING
            or self._of_hop[hop] >= MAX_RESOLVING_OF_HOP
        )
        return DropReason.EXIT_TOO_MANY_NAMES if is_too_many else None

    async def _look_up(self, name: str, circuit_id: int) -> str | None:
        policy, exit_socket = self._policy, self._policy.exit_sockets.get(circuit_id)
        hop = exit_socket.hop.address[0] if exit_socket is not None else ""
        if (refusal := self._refusal(name, circuit_id, hop)) is not None:
            policy.counters[refusal] += 1
            return None
        policy.resolving += 1
        self._of_circuit[circuit_id] += 1
        self._of_hop[hop] += 1
        try:
            found = await look_up(name, None, socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            policy.counters[DropReason.EXIT_NAME_UNKNOWN] += 1
            return None
        finally:
            policy.resolving -= 1
            _count_down(self._of_circuit, circuit_id)
            _count_down(self._of_hop, hop)
        families = policy.exit_source.families
        addresses = [str(address[0]) for family, _, _, _, address in found if family in families]
        if not addresses:
            policy.counters[DropReason.EXIT_NAME_UNKNOWN] += 1
        return addresses[0] if addresses else None


def _count_down(counts: Counter[Any], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
