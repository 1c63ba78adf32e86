"""py-ipv8's own tests of its TunnelCommunity and hidden services, on our endpoints, native and Python.

None is skipped."""

from collections import Counter
from unittest.mock import Mock

import pytest
from ipv8.messaging.interfaces.endpoint import EndpointListener
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.test.messaging.anonymization.test_community import TestTunnelCommunity as CommunityTests
from ipv8.test.messaging.anonymization.test_hiddenservices import TestHiddenServices as HiddenServicesTests

from overlay.crypto_endpoint import DataCellEndpoint
from overlay.udp import bind_udp
from packet_engine import is_built

CommunityTests.__test__ = HiddenServicesTests.__test__ = False

LOOPBACK = "127.0.0.1"


def listen_everywhere(endpoint):
    """The tests also send messages of overlays that nobody here has."""
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


class OnNativeEngine:
    """Each node on real sockets."""

    __test__ = True

    def create_node(self, *args, **kwargs):
        from packet_engine.endpoint import NativeEndpoint

        node = super().create_node(*args, **kwargs)
        overlay = node.overlay
        endpoint = NativeEndpoint(bind_udp(LOOPBACK, 0), Counter(), LOOPBACK, allow_private=True)
        address = UDPv4Address(*endpoint.get_address())
        node.endpoint = overlay.endpoint = overlay.settings.endpoint = endpoint
        node.my_peer.addresses[UDPv4Address] = address
        endpoint.wan_address = endpoint.lan_address = address
        overlay.my_estimated_wan = overlay.my_estimated_lan = address
        endpoint.add_prefix_listener(overlay, overlay.get_prefix())
        listen_everywhere(endpoint)
        use(overlay, endpoint)
        return node


class OnPythonEngine:
    """Each node on py-ipv8's network in memory, as the tests' own exits are."""

    __test__ = True

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        node.endpoint.remove_listener(node.overlay.crypto_endpoint)
        use(node.overlay, DataCellEndpoint(node.endpoint, Counter()))
        return node


class AsyncSetUp:
    """Nodes need the loop from the start."""

    async def setUp(self):
        super().setUp()


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
