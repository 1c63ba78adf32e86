"""Says what a pool tells of its children."""

from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from tunnel_pool.rpc import control_pb2 as pb


class PoolListener(Protocol):
    """Hears from a pool what happens to its children."""

    def child_ready(self, slot: int) -> None: ...

    def child_gone(self, slot: int, how: str) -> None:
        """Called when a child is ending or gone; its circuits are gone, too."""

    def circuits_changed(self, slot: int, circuit_ids: Sequence[int]) -> None:
        """Called when RPC_SYNC changed these circuits; their state is in `ProcessPool.pictures`."""

    def swarms_changed(self, slot: int, infohashes: Sequence[bytes]) -> None:
        """Hear that RPC_SYNC changed what the child knows of these."""

    def candidates_changed(self) -> None:
        """Hear that RPC_SYNC changed some child's candidates."""

    def routes_changed(self, slot: int) -> None:
        """Hear that RPC_SYNC changed the circuits that end at the child."""

    async def called(self, slot: int, name: str, message: Any) -> Message:
        """Return the answer to a call of a child's. Raises RemoteError."""

    def circuit_died(self, slot: int, message: pb.CircuitDead) -> None: ...

    def orphaned(self, slot: int, message: pb.Orphans) -> None: ...

    def guest_came(self, message: pb.StreamGuest) -> None: ...

    def exit_heard(self, message: pb.ExitHeard) -> None: ...

    def datagram_received(self, slot: int, circuit_id: int, address: bytes, payload: bytes) -> None: ...
