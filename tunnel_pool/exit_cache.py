"""Exits are remembered over a restart, as Tribler does: a network has few, and they take long to find.

The file is py-ipv8's Network.snapshot, so Tribler's exitnode_cache.dat is one, too: packed
addresses (messaging/serialization.py, "address"), one after the other, the newest first.
"""

import asyncio
import logging
import struct
from collections.abc import Iterable
from pathlib import Path

from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.messaging.serialization import PackError, default_serializer

from tunnel_pool.contract import Tunnels
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.files import write_atomically

INTERVAL_S = 5.0
RETRY_S = 300.0
MAX_EXITS = 40

logger = logging.getLogger(__name__)


def pack_exits(exits: Iterable[HostPort]) -> bytes:
    return b"".join(default_serializer.pack("address", UDPv4Address(*address)) for address in exits)


def unpack_exits(data: bytes) -> tuple[HostPort, ...]:
    """Return the exits, as far as they can be read."""
    exits: list[HostPort] = []
    at = 0
    while at < len(data):
        try:
            address, at = default_serializer.unpack("address", data, at)
        except (PackError, struct.error, IndexError, ValueError, OSError):
            break
        if isinstance(address, UDPv4Address):
            exits.append(HostPort(*address))
    return tuple(dict.fromkeys(exits))


def read_exits(path: Path) -> tuple[HostPort, ...]:
    """Return the exits that were written, none when they can't be read."""
    try:
        return unpack_exits(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        logger.warning("The exits of the last run are forgotten: %s", error.strerror)
        return ()


async def remember_exits(tunnels: Tunnels, path: Path) -> None:
    """Keep the file up to date, for ever; what is known now comes first."""
    written = read_exits(path)
    while True:
        await asyncio.sleep(INTERVAL_S)
        now = [HostPort(*peer.address) for peer in tunnels.get_candidates(PEER_FLAG_EXIT_BT)]
        if len(set(now) & set(written)) >= min(len(set(now)), MAX_EXITS):
            continue
        newest_first = tuple(dict.fromkeys([*now, *written]))[:MAX_EXITS]
        try:
            await asyncio.to_thread(write_atomically, path, pack_exits(newest_first))
        except OSError as error:
            logger.warning("Exits are not remembered: %s", error.strerror)
            await asyncio.sleep(RETRY_S)
        else:
            written = newest_first
