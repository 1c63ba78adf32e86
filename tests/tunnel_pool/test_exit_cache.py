"""Tests that known exits survive a restart, and that an invalid file of exits does no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from tests.worlds.network import COMMUNITY_ID, address_of, network, until, unused_host
from tunnel_pool import exit_cache
from tunnel_pool.exit_cache import pack_exits, read_exits, unpack_exits
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.tunnels import NodeOptions, open_tunnels

ADDRESSES = st.tuples(st.ip_addresses(v=4).map(str), st.integers(1, 65535)).map(lambda pair: HostPort(*pair))


@given(st.lists(ADDRESSES, unique=True))
def test_there_and_back(exits):
    assert unpack_exits(pack_exits(exits)) == tuple(exits)


def test_as_py_ipv8_writes_it():
    peers = Network()
    key = default_eccrypto.generate_key("curve25519").pub()
    peers.add_verified_peer(Peer(key, UDPv4Address("192.0.2.7", 7)))
    assert unpack_exits(peers.snapshot()) == (HostPort("192.0.2.7", 7),)


@given(st.binary(max_size=60))
def test_what_is_none_is_read_as_far_as_it_goes(data):
    exits = unpack_exits(pack_exits([HostPort("192.0.2.7", 7)]) + data)
    assert exits[0] == HostPort("192.0.2.7", 7)


def test_what_can_not_be_read_is_nothing(tmp_path):
    assert read_exits(tmp_path / "not there") == ()
    assert read_exits(tmp_path) == ()


@pytest.mark.parametrize("workers", [0, 1])
async def test_after_a_restart_exits_are_found_without_bootstrap(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(exit_cache, "INTERVAL_S", 0.1)
    state = tmp_path / "state"

    async def known(exits, **more):
        options = NodeOptions(
            WorkerRange(workers, workers), state, HostPort(unused_host(), 0), community_id=COMMUNITY_ID, **more
        )
        tunnels = await open_tunnels(options)
        try:
            await until(lambda: len(tunnels.get_candidates(PEER_FLAG_EXIT_BT)) == exits)
            if more:
                await until(lambda: len(list(state.glob("exits-*.dat"))) == 1)
        finally:
            await tunnels.unload()

    async with network(exits=1, relays=1) as nodes:
        await known(1, bootstrap=(address_of(nodes[1]),))
        (file,) = state.glob("exits-*.dat")
        assert read_exits(file) == (address_of(nodes[0]),)
        await known(1)
