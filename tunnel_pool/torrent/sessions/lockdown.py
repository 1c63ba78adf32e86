"""Keeps anonymous sessions in a network without a way out (sandbox/lockdown.py), where the user says so."""

import logging
from enum import Enum

from tunnel_pool.sandbox.lockdown import Lockdown, LockdownError
from tunnel_pool.system.errors import UserError

logger = logging.getLogger(__name__)


class LockdownMode(Enum):
    """Lists the choices of `--lockdown`."""

    AUTO = "auto"  # where the kernel allows it
    ON = "on"  # without it, nothing is started
    OFF = "off"


def open_lockdown(mode: LockdownMode) -> Lockdown | None:
    """Return where to open anonymous sessions, None for the network that all else is in. Raises UserError."""
    if mode is LockdownMode.OFF:
        return None
    try:
        return Lockdown()
    except LockdownError as error:
        if mode is LockdownMode.ON:
            raise UserError(
                f"cannot lock libtorrent's network down: {error}; see --lockdown in docs/THREATS.md"
            ) from None
        logger.warning("libtorrent is kept to the tunnels by its settings alone: %s (see --lockdown)", error)
        return None
