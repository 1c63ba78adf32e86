"""Running the message handlers of py-ipv8's overlays on what strangers send."""

import logging
import time
from asyncio import ensure_future, iscoroutine
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import MESSAGE_ID_AT, PREFIX_BYTES

logger = logging.getLogger(__name__)


class GuardedHandlers:
    """An overlay that counts messages which nobody handles or which a handler fails on.

    py-ipv8 logs a traceback for each message that it can't read (community.py, on_packet), and a warning for each that
    it does not know. Anybody can send a million of either. This comes before a py-ipv8 Community among the bases.
    """

    counters: Counter[str]
    network: Any
    register_anonymous_task: Callable[..., Any]
    decode_map: Any
    decode_map_private: Mapping[int, Any]
    deprecated_message_names: Mapping[int, str]
    _prefix: bytes

    def on_packet(self, packet: tuple[Any, bytes], warn_unknown: bool = True) -> None:
        """Handle a datagram of this overlay; any datagram of a known peer shows that the peer is there."""
        source_address, data = packet
        if (peer := self.network.get_verified_by_address(source_address)) is not None:
            peer.last_response = time.time()
        if self._is_ours(data):
            message_id = data[MESSAGE_ID_AT]
            handler = None if message_id in self.deprecated_message_names else self.decode_map[message_id]
            self._handle(handler, source_address, data)

    def on_packet_from_circuit(self, source_address: Any, data: bytes, circuit_id: int) -> None:
        """Handle a message that came in a cell."""
        if self._is_ours(data):
            handler = self.decode_map_private.get(data[MESSAGE_ID_AT])
            self._handle(handler, source_address, data, circuit_id)

    def _is_ours(self, data: bytes) -> bool:
        return len(data) > PREFIX_BYTES and data.startswith(self._prefix)

    def _handle(self, handler: Callable[..., Any] | None, *arguments: Any) -> None:
        if handler is None:
            self.counters[DropReason.PACKET_UNKNOWN_MESSAGE] += 1
            return
        try:
            result = handler(*arguments)
        except Exception:  # a stranger may send anything
            logger.debug("A message was not understood", exc_info=True)
            self.counters[DropReason.PACKET_FAILED] += 1
            return
        if iscoroutine(result):
            self.register_anonymous_task("handle a message", ensure_future(result), ignore=(Exception,))
