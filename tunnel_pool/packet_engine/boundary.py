"""The boundary that every datagram of a stranger passes on its way to py-ipv8's overlays."""

import logging
from collections import Counter
from typing import Any

from ipv8.messaging.interfaces.endpoint import Endpoint, EndpointListener

from tunnel_pool.rpc.drop_reasons import DropReason

logger = logging.getLogger(__name__)


class GuardedDelivery(Endpoint):
    """A py-ipv8 endpoint that counts datagrams which are too short or which a listener fails on.

    py-ipv8's overlays look at the byte behind the prefix before they look at the length (community.py, on_packet), and
    its endpoints let a listener's exception through to the event loop, which logs a traceback for each datagram.
    """

    _counters: Counter[str]

    def notify_listeners(self, packet: tuple[Any, bytes]) -> None:
        """Hand a datagram to the listeners of its prefix if it has a message id behind the prefix."""
        if len(packet[1]) <= self.prefixlen:
            self._counters[DropReason.PACKET_TOO_SHORT] += 1
        else:
            super().notify_listeners(packet)

    def _deliver_later(self, listener: EndpointListener, packet: tuple[Any, bytes]) -> None:
        try:
            super()._deliver_later(listener, packet)
        except Exception:  # a stranger may send anything
            logger.debug("A packet was not understood", exc_info=True)
            self._counters[DropReason.PACKET_FAILED] += 1
