"""The node with tunnels and a SOCKS5 server, without a libtorrent session: others are its clients.

python -m tunnel_pool.gumby_experiments.nodes.socks_node --workers N --hops H ...

Says {"port"} when its circuits stand; when its stdin ends, {"handled"}: of probes on their way out that went through
this process, length of payload, and when it began and ended with each (CLOCK_REALTIME).
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tunnel_pool.cli.arguments import options
from tunnel_pool.gumby_experiments.datagram_load import PAYLOAD_BYTES
from tunnel_pool.gumby_experiments.nodes.program import run_program
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.socks5.server import Association
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect, serve_session
from tunnel_pool.tunnels import open_tunnels

POLL_S = 0.05
MAX_HANDLED = 5000


def timed(dispatcher: Dispatcher, handled: list[tuple[int, float, float]]) -> None:
    """Have the dispatcher record when it began and ended with each probe."""
    receive: Callable[..., None] = dispatcher.datagram_received

    def datagram_received(association: Association, address: bytes, payload: bytes) -> None:
        begun_s = time.time()
        receive(association, address, payload)
        if len(payload) != PAYLOAD_BYTES and len(handled) < MAX_HANDLED:
            handled.append((len(payload), begun_s, time.time()))

    dispatcher.datagram_received = datagram_received  # type: ignore[method-assign]


async def serve(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    node = options.node_options(arguments)
    tunnels = await open_tunnels(node)
    handled: list[tuple[int, float, float]] = []
    try:
        dispatcher, server = serve_session(tunnels, Lane(arguments.hops), lambda is_lost: None, node.steering)
        timed(dispatcher, handled)
        connect(tunnels, [dispatcher])
        port = server.listen()
        tunnels.build_tunnels(arguments.hops)
        while len(tunnels.find_circuits(hops=arguments.hops)) < node.circuits:
            if why := tunnels.failure():
                raise UserError(why)
            await asyncio.sleep(POLL_S)
        print(json.dumps({"port": port}), flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()
        print(json.dumps({"handled": handled, "dropped": dict(dispatcher.dropped() + tunnels.dropped())}), flush=True)
        await server.close()
    finally:
        await tunnels.unload()
    return {"ok": True}


if __name__ == "__main__":
    sys.exit(run_program(__doc__, serve))
