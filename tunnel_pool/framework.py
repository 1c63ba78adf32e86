"""Chooses what does the I/O of the main process: Twisted, where its reactor runs, else the asyncio loop alone.

Our own commands run Twisted (runner.py). A program that embeds the pool need not have it. Who starts the children is in
pool/launchers.py.
"""

import sys

from tunnel_pool.socks5.server import Network


def has_reactor() -> bool:
    """Return whether a reactor runs: some library may have imported one that nobody runs."""
    return bool(getattr(sys.modules.get("twisted.internet.reactor"), "running", False))


def own_network() -> Network:
    """Return what listens for SOCKS5 clients."""
    if has_reactor():
        from tunnel_pool.socks5.twisted_network import TwistedNetwork

        return TwistedNetwork()
    from tunnel_pool.socks5.asyncio_network import AsyncioNetwork

    return AsyncioNetwork()
