"""Chooses what starts the children: Twisted, where its reactor runs, else the asyncio loop alone."""

from tunnel_pool.framework import has_reactor
from tunnel_pool.pool.launching import Launcher


def own_launcher() -> Launcher:
    """Return what starts the children."""
    if has_reactor():
        from tunnel_pool.pool.twisted_launcher import TwistedLauncher

        return TwistedLauncher()
    from tunnel_pool.pool.asyncio_launcher import AsyncioLauncher

    return AsyncioLauncher()
