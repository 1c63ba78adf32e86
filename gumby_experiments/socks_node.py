"""The node with tunnels and a SOCKS5 server, without a libtorrent session: others are its clients.

python -m gumby_experiments.socks_node --workers N --hops H ...

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

from gumby_experiments.datagram_load import PAYLOAD_BYTES
from rpc.lifeline import die_with_parent
from socks5.server import Association
from tunnel_pool import runner
from tunnel_pool.cli import options
from tunnel_pool.dispatch import Dispatcher, connect, serve_session
from tunnel_pool.errors import UserError
from tunnel_pool.log import set_up_logging
from tunnel_pool.tunnels import open_tunnels

POLL_S = 0.05
MAX_HANDLED = 5000


def timed(dispatcher: Dispatcher, handled: list[tuple[int, float, float]]) -> None:
    """Let the dispatcher write down when it had what."""
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
        dispatcher, server = serve_session(tunnels, arguments.hops, lambda is_lost: None, node.steering)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with-parent", type=int, required=True)
    options.add_workers_option(parser, default="1")
    options.add_hops_option(parser)
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="error")
    arguments = parser.parse_args()
    die_with_parent(arguments.with_parent)
    set_up_logging(arguments.log_level)
    try:
        ended = runner.run(serve(arguments))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if ended.result or ended.signal else 1


if __name__ == "__main__":
    sys.exit(main())
