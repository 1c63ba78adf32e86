"""Real nodes on loopback for tests: exits and relays in this process, an echo outside the tunnels."""

import asyncio
import contextlib
import itertools
import os
import socket
from contextlib import asynccontextmanager

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import (
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    PEER_FLAG_SPEED_TEST,
)
from prometheus_client.parser import text_string_to_metric_families

from tunnel_pool.overlay.ground.config import HostPort, OverlayConfig
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.tunnels import new_member_key

RELAY_FLAGS = frozenset({PEER_FLAG_RELAY, PEER_FLAG_SPEED_TEST})
EXIT_FLAGS = RELAY_FLAGS | {PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8}
COMMUNITY_ID = bytes(range(20))
WAIT_S = 30

_numbers = itertools.count(1)
# Tests that run beside each other have networks of their own.
_NET = 240 + int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid() % 15}").removeprefix("gw")) % 15

# What nodes of this process run when a test does not say; the fixture `engine` sets it.
engine = EngineChoice.AUTO


def unused_host():
    """Return an address of 127.0.0.0/8 that no other test uses."""
    number = next(_numbers)
    return f"127.{_NET}.{number // 250}.{number % 250 + 1}"


def make_config(flags=RELAY_FLAGS, bootstrap=(), host=None, port=0, **more):
    return OverlayConfig(
        slot=0,
        member_key=default_eccrypto.generate_key("curve25519").key_to_bin(),
        listen=HostPort(host or unused_host(), port),
        peer_flags=flags,
        community_id=COMMUNITY_ID,
        bootstrap=tuple(bootstrap),
        **{"engine": engine, **more},
    )


def address_of(node):
    return HostPort(*node.endpoint.get_address())


@asynccontextmanager
async def network(exits=1, relays=0, allow_private=True):
    """Open exits and relays that know each other, and yield them, exits first."""
    nodes = []
    try:
        for flags in [EXIT_FLAGS] * exits + [RELAY_FLAGS] * relays:
            known = [address_of(node) for node in nodes]
            nodes.append(await open_overlay(make_config(flags, known, allow_private=allow_private)))
        yield nodes
    finally:
        for node in nodes:
            if node.endpoint.is_open():
                await node.unload()


@asynccontextmanager
async def opened(*configs):
    """Open a node for each configuration, and yield the nodes."""
    nodes = []
    try:
        for config in configs:
            nodes.append(await open_overlay(config))
        yield nodes
    finally:
        for node in nodes:
            await node.unload()


@asynccontextmanager
async def tunnels(
    kind, bootstrap=(), workers=2, circuits=2, *, start_method=StartMethod.SPAWN, shares_port=True, **more
):
    """Open and yield tunnels: "plain" in this process, "pooled" over children, "ported" with a port for each child."""
    config = make_config(bootstrap=bootstrap, **more)
    if kind == "plain":
        opened = await open_overlay(config)
        opened.settings.max_circuits = circuits
    else:
        # With ports of their own, children have keys of their own, too: peers know a key at one address.
        more_keys = {slot: new_member_key() for slot in range(1, workers + 2)} if kind == "ported" else {}
        opened = PooledTunnelCommunity(
            config,
            range(workers),
            circuits,
            own_keys={0: config.member_key, **more_keys} if more_keys else None,
            start_method=start_method,
            shares_port=kind == "pooled",
        )
        await opened.start()
    try:
        yield opened
    finally:
        await opened.unload()


async def until(condition, timeout_s=WAIT_S, what="the condition"):
    """Wait until `condition()` is true, and return its value; fail after `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not (result := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true in {timeout_s} s"
        await asyncio.sleep(0.02)
    return result


class Echo:
    """A UDP service outside the tunnels that answers what it gets."""

    def __init__(self, host=None):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((host or unused_host(), 0))
        self.sock.setblocking(False)
        self.address = self.sock.getsockname()
        self.received = []
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    def _readable(self):
        data, source = self.sock.recvfrom(65535)
        self.received.append((data, source))
        with contextlib.suppress(OSError):  # the way back is gone
            self.sock.sendto(data, source)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


def dht_like(text):
    """Return a datagram that an exit lets pass: it looks like a DHT message."""
    return b"d1:t" + str(len(text)).encode() + b":" + text + b"e"


def metrics_in(text):
    """Return what Prometheus reads: values by name and labels."""
    families = text_string_to_metric_families(text)
    return {(sample.name, *sorted(sample.labels.items())): sample.value for f in families for sample in f.samples}


def sockets_of(process, kind):
    """Return the sockets of a process as psutil knows them; `kind` is one of psutil's, "inet" for all of IP."""
    listed = process.net_connections if hasattr(process, "net_connections") else process.connections  # before psutil 6
    return listed(kind)
