"""Tests that both engines apply the same exit rules, and encode a cell to the same bytes."""

from pathlib import Path

import pytest
from ipv8.messaging.anonymization.exit_socket import DataChecker
from ipv8.messaging.anonymization.tunnel import FORWARD, PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8

from tests.packet_engine.vectors import BITTORRENT, BORDERS, IPV8, NEVER, NOT_BITTORRENT, NOT_IPV8, PRIVATE, PUBLIC
from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.wire.session_keys import SessionKeys
from tunnel_pool.packet_engine import EngineChoice, is_built

PREFIX = bytes([0, 2]) + bytes(range(20))


@pytest.fixture(params=["native", "python"])
def rules(request):
    if request.param == "python":
        return PythonRules()
    if not is_built():
        pytest.skip("the native engine is not built")
    return NativeRules()


class PythonRules:
    def destination(self, host, port, allow_private):
        return is_allowed_destination(host, port, allow_private)

    def content(self, data, flags):
        bittorrent = DataChecker.could_be_bt(data) and PEER_FLAG_EXIT_BT & flags
        ipv8 = DataChecker.could_be_ipv8(data) and (PEER_FLAG_EXIT_IPV8 & flags or data.startswith(PREFIX))
        return bool(bittorrent or ipv8)


class NativeRules:
    def refusal(self, data, host, port, flags, allow_private):
        from tunnel_pool.packet_engine._native import exit_refusal

        return exit_refusal(data, (host, port), PREFIX, flags, False, allow_private)

    def destination(self, host, port, allow_private):
        return self.refusal(b"de", host, port, PEER_FLAG_EXIT_BT, allow_private) != "exit_destination_refused"

    def content(self, data, flags):
        return self.refusal(data, "8.8.8.8", 1, flags, False) is None


@pytest.mark.parametrize("host", PUBLIC)
def test_public_destinations(rules, host):
    assert rules.destination(host, 6881, False)
    assert not rules.destination(host, 0, True)


@pytest.mark.parametrize("host", PRIVATE)
def test_private_only_when_told(rules, host):
    assert not rules.destination(host, 6881, False)
    assert rules.destination(host, 6881, True)


@pytest.mark.parametrize("host", NEVER)
def test_nobody_everybody_and_ipv4_in_disguise_never(rules, host):
    assert not rules.destination(host, 6881, False)
    assert not rules.destination(host, 6881, True)


@pytest.mark.parametrize(("host", "allowed"), BORDERS.items())
def test_borders(rules, host, allowed):
    assert rules.destination(host, 6881, False) is allowed


@pytest.mark.parametrize("data", BITTORRENT.values(), ids=BITTORRENT)
def test_bittorrent_leaves_an_exit_for_bittorrent(rules, data):
    assert rules.content(data, PEER_FLAG_EXIT_BT)
    assert not rules.content(data, PEER_FLAG_EXIT_IPV8)
    assert not rules.content(data, 0)


@pytest.mark.parametrize("data", NOT_BITTORRENT.values(), ids=NOT_BITTORRENT)
def test_nothing_else_does(rules, data):
    assert not rules.content(data, PEER_FLAG_EXIT_BT)


@pytest.mark.parametrize("data", IPV8.values(), ids=IPV8)
def test_overlay_messages_leave_an_exit_for_them(rules, data):
    assert rules.content(data, PEER_FLAG_EXIT_IPV8)
    assert not rules.content(b"\xff" + data, PEER_FLAG_EXIT_IPV8)


@pytest.mark.parametrize("data", NOT_IPV8.values(), ids=NOT_IPV8)
def test_what_only_looks_like_one_does_not(rules, data):
    assert not rules.content(data, PEER_FLAG_EXIT_IPV8)


def test_the_choice_of_an_engine():
    from tunnel_pool.packet_engine import choose

    assert choose(EngineChoice.PYTHON) is EngineChoice.PYTHON
    assert choose(EngineChoice.AUTO) is (EngineChoice.NATIVE if is_built() else EngineChoice.PYTHON)


def test_layers_are_those_that_the_rust_engine_is_tested_with():
    """layers.txt says what ipv8_rust_tunnels made of it; both of our engines have to make the same."""
    lines = (Path(__file__).parent / "layers.txt").read_text().splitlines()
    vectors = [line.split() for line in lines if not line.startswith("#")]
    assert len(vectors) >= 4
    for key, salt, counter, plain, layer in vectors:
        keys = SessionKeys(
            bytes.fromhex(key), bytes(32), bytes.fromhex(salt), bytes(4), salt_explicit_forward=int(counter) - 1
        )
        text = bytes.fromhex(plain.strip("-"))
        assert keys.encrypt_str(text, FORWARD) == bytes.fromhex(layer)
        assert keys.decrypt_str(bytes.fromhex(layer), FORWARD) == text
