"""The network device that a node or a daemon is bound to: gone, nothing leaves by another; back, it is used again."""

import logging
import socket

logger = logging.getLogger(__name__)


class DeviceIsAnotherError(Exception):
    """Says that the device is back with another number: sockets bound before are bound to nothing.

    They can't be bound anew: that takes them out of their SO_REUSEPORT group.
    """


def index_of(device: str) -> int:
    """Return the kernel's index of a device, 0 while it does not exist; a device made anew has another index."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


class DeviceWatch:
    """Watches a network device: call `look` every second."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._bound = self._seen = index_of(device)

    def look(self) -> None:
        """Log when the device goes or comes back. Raises DeviceIsAnotherError when it is back with another index."""
        index = index_of(self._device)
        if index == self._seen:
            return
        self._seen = index
        if not index:
            logger.warning("The device %s is gone: nothing leaves until it is back", self._device)
        elif index == self._bound:
            logger.info("The device %s is back", self._device)
        else:
            logger.info("The device %s is back, as another: starting anew", self._device)
            raise DeviceIsAnotherError
