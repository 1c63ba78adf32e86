"""Runs py-ipv8's own tests of its TunnelCommunity and hidden services on our endpoints, native and Python.

On a single engine, all of them run; between two engines, those that mock the other end are skipped."""

import asyncio
import contextlib
from collections import Counter
from unittest.mock import Mock

import pytest
from ipv8.messaging.interfaces.endpoint import EndpointListener
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.test.messaging.anonymization.test_community import TestTunnelCommunity as CommunityTests
from ipv8.test.messaging.anonymization.test_hiddenservices import TestHiddenServices as HiddenServicesTests

from tunnel_pool.overlay.wire.crypto_endpoint import DataCellEndpoint
from tunnel_pool.overlay.wire.udp import BatchedEndpoint, bind_udp
from tunnel_pool.packet_engine import is_built

CommunityTests.__test__ = HiddenServicesTests.__test__ = False

LOOPBACK = "127.0.0.1"


def listen_everywhere(endpoint):
    """Add listeners for overlays that no node here has, to which py-ipv8's tests also send messages."""
    listener = Mock()
    listener.__class__ = EndpointListener
    for prefix in (bytes(22), b"\x00\x01" + bytes(20)):
        endpoint.add_prefix_listener(listener, prefix)


def use(overlay, crypto_endpoint):
    """Put a crypto endpoint in the place of py-ipv8's."""
    overlay.crypto_endpoint = crypto_endpoint
    crypto_endpoint.setup_tunnels(overlay, overlay.settings)
    overlay.circuits = crypto_endpoint.circuits
    overlay.relay_from_to = crypto_endpoint.relays
    overlay.exit_sockets = crypto_endpoint.exit_sockets


def move_to(node, endpoint):
    """Put a node of py-ipv8's tests on another endpoint, with a real socket."""
    overlay = node.overlay
    address = UDPv4Address(*endpoint.get_address())
    node.endpoint.remove_listener(overlay.crypto_endpoint)
    node.endpoint = overlay.endpoint = overlay.settings.endpoint = endpoint
    node.my_peer.addresses[UDPv4Address] = address
    endpoint.wan_address = endpoint.lan_address = address
    overlay.my_estimated_wan = overlay.my_estimated_lan = address
    endpoint.add_prefix_listener(overlay, overlay.get_prefix())
    listen_everywhere(endpoint)
    return node


def move_to_native(node):
    from tunnel_pool.packet_engine.endpoint import NativeEndpoint

    endpoint = NativeEndpoint(bind_udp(LOOPBACK, 0), Counter(), exit_host=LOOPBACK, allow_private=True)
    move_to(node, endpoint)
    use(node.overlay, endpoint)
    return node


def move_to_python(node):
    endpoint = BatchedEndpoint(bind_udp(LOOPBACK, 0), Counter())
    with contextlib.suppress(StopIteration):
        endpoint.open().send(None)  # it has nothing to wait for, and a node is made without a loop's help
    move_to(node, endpoint)
    use(node.overlay, DataCellEndpoint(endpoint, Counter()))
    return node


def move_to_rust(node):
    from ipv8_rust_tunnels.endpoint import Endpoint as RustEndpoint

    endpoint = RustEndpoint(0, LOOPBACK)
    endpoint.open()
    endpoint.set_exit_address((LOOPBACK, 0))
    move_to(node, endpoint)
    use(node.overlay, endpoint)
    return node


MOVES = {"native": move_to_native, "python": move_to_python, "rust": move_to_rust}


class OnNativeEngine:
    """Creates each node on a native endpoint, with a real socket."""

    __test__ = True

    def create_node(self, *args, **kwargs):
        return move_to_native(super().create_node(*args, **kwargs))


class OnPythonEngine:
    """Creates each node on the Python engine, over py-ipv8's network in memory, as the tests create their exits."""

    __test__ = True

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        node.endpoint.remove_listener(node.overlay.crypto_endpoint)
        use(node.overlay, DataCellEndpoint(node.endpoint, Counter()))
        return node


class AsyncSetUp:
    """Makes setUp a coroutine, because nodes need a loop from the start."""

    async def setUp(self):
        super().setUp()


class OnMixedEngines:
    """Creates node after node on the next of `kinds`, on real sockets, so that each kind meets each in every role."""

    __test__ = True
    kinds: tuple[str, ...] = ()

    async def deliver_messages(self, timeout=0.1):
        """Wait longer than py-ipv8, whose network is in memory, for real sockets and for Rust's threads."""
        await super().deliver_messages(timeout)
        await asyncio.sleep(0.1)

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        return MOVES[self.kinds[len(self.nodes) % len(self.kinds)]](node)


native_only = pytest.mark.skipif(not is_built(), reason="the native engine is not built")


@native_only
class TestCommunityOnNativeEngine(AsyncSetUp, OnNativeEngine, CommunityTests):
    pass


@native_only
class TestHiddenServicesOnNativeEngine(AsyncSetUp, OnNativeEngine, HiddenServicesTests):
    pass


class TestCommunityOnPythonEngine(AsyncSetUp, OnPythonEngine, CommunityTests):
    pass


class TestHiddenServicesOnPythonEngine(AsyncSetUp, OnPythonEngine, HiddenServicesTests):
    pass


MOCKED_EXIT = "replaces an exit by one on py-ipv8's network in memory, which an exit in Python then can't leave"
NO_RUST_NAMES = "a mock in place of an exit in Python; ipv8-rust-tunnels does not hand names over"
NO_RUST_LOOKUP = "mocks what ipv8-rust-tunnels does itself (skipped in its own run of this suite, too)"


def skipped(reason):
    async def test(self):
        pytest.skip(reason)

    return test


class WithPython:
    test_tunnel_endpoint_anon = skipped(MOCKED_EXIT)
    test_dht_lookup_with_counterparty = skipped(MOCKED_EXIT)
    test_pex_lookup = skipped(MOCKED_EXIT)
    test_pex_lookup_exit_is_ip = skipped(MOCKED_EXIT)
    test_test_request_e2e = skipped(MOCKED_EXIT)


class WithRustTunnels:
    test_tunnel_unicode_destination = skipped(NO_RUST_NAMES)
    test_dht_lookup_with_counterparty = skipped(NO_RUST_LOOKUP)
    test_test_request = skipped(NO_RUST_LOOKUP)
    test_test_request_e2e = skipped(NO_RUST_LOOKUP)


@native_only
@pytest.mark.slow
class TestCommunityNativePython(WithPython, AsyncSetUp, OnMixedEngines, CommunityTests):
    kinds = ("native", "python")


@native_only
@pytest.mark.slow
class TestCommunityPythonNative(WithPython, AsyncSetUp, OnMixedEngines, CommunityTests):
    kinds = ("python", "native")


@native_only
@pytest.mark.slow
class TestCommunityNativeRust(WithRustTunnels, AsyncSetUp, OnMixedEngines, CommunityTests):
    kinds = ("native", "rust")


@native_only
@pytest.mark.slow
class TestCommunityRustNative(WithRustTunnels, AsyncSetUp, OnMixedEngines, CommunityTests):
    kinds = ("rust", "native")


@native_only
@pytest.mark.slow
class TestHiddenServicesNativePython(WithPython, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    kinds = ("native", "python")


@native_only
@pytest.mark.slow
class TestHiddenServicesPythonNative(WithPython, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    kinds = ("python", "native")


@native_only
@pytest.mark.slow
class TestHiddenServicesEndsNativePython(WithPython, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    """The downloader is node 0, the seeder node 2: two ends of different kinds."""

    kinds = ("native", "native", "python")


@native_only
@pytest.mark.slow
class TestHiddenServicesNativeRust(WithRustTunnels, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    kinds = ("native", "rust")


@native_only
@pytest.mark.slow
class TestHiddenServicesRustNative(WithRustTunnels, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    kinds = ("rust", "native")


@native_only
@pytest.mark.slow
class TestHiddenServicesEndsNativeRust(WithRustTunnels, AsyncSetUp, OnMixedEngines, HiddenServicesTests):
    kinds = ("native", "native", "rust")
