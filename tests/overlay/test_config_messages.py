"""Tests that a child decodes the configuration exactly as the main process encoded it."""

from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from tunnel_pool.overlay.config_messages import (
    admission_message,
    admission_of,
    config_message,
    config_of,
)
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.config import ExitFrom, HostPort, OverlayConfig
from tunnel_pool.overlay.ground.exit_rules import ADDRESS_BYTES, PORT_BYTES, ExitRules, Protocol, Ranges
from tunnel_pool.packet_engine import EngineChoice

COUNTS = st.integers(0, (1 << 32) - 1)
PORTS = st.integers(0, 0xFFFF)
PLACES = st.builds(HostPort, st.ip_addresses().map(str), PORTS)
KEYS = st.binary(max_size=80)


def ranges(size):
    numbers = st.integers(0, (1 << 8 * size) - 1)
    return st.lists(st.tuples(numbers, numbers).map(sorted), max_size=5).map(Ranges.joined)


ADMISSIONS = st.builds(Admission, *[COUNTS] * 5, st.booleans())
RULES = st.builds(
    ExitRules,
    protocols=st.none() | st.integers(0, 31).map(Protocol),
    denied=ranges(ADDRESS_BYTES),
    allowed=st.none() | ranges(ADDRESS_BYTES),
    denied_ports=ranges(PORT_BYTES),
    allowed_ports=st.none() | ranges(PORT_BYTES),
    max_destinations=COUNTS,
    max_unanswered=COUNTS,
    inbound_per_s=st.none() | COUNTS,
    new_per_s=COUNTS,
    https_names=st.none() | st.lists(st.from_regex(r"[a-z0-9.-]+", fullmatch=True), max_size=3).map(tuple),
)
TOLD = {
    "slot": st.integers(0, 255),
    "member_key": KEYS,
    "listen": PLACES,
    "peer_flags": st.frozensets(COUNTS, max_size=6),
    "community_id": KEYS,
    "bootstrap_default": st.booleans(),
    "bootstrap": st.lists(PLACES, max_size=4).map(tuple),
    "known_peers": st.lists(PLACES, max_size=4).map(tuple),
    "siblings": st.frozensets(KEYS, max_size=4),
    "allow_private": st.booleans(),
    "admission": ADMISSIONS,
    "exit_rules": RULES,
    "device": st.text(max_size=15),
    "exit_from": st.builds(ExitFrom, st.ip_addresses().map(str), st.tuples(PORTS, PORTS)),
    "requires_diversity": st.booleans(),
    "offered_together": st.integers(1, 32),
    "engine": st.sampled_from(EngineChoice),
}
CONFIGS = st.builds(OverlayConfig, **TOLD)
# `limits` is a descriptor, which is passed to the child separately; `trains` is off only for measurements.
NOT_TOLD = {"limits", "trains"}


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@given(CONFIGS)
@settings(deadline=None)
def test_a_configuration_comes_whole(config):
    assert config_of(over_the_wire(config_message(config))) == config


@given(RULES, ADMISSIONS)
@settings(deadline=None)
def test_rules_and_admission_come_whole(rules, admission):
    assert ExitRules.unpack(rules.pack()) == rules
    assert admission_of(over_the_wire(admission_message(admission))) == admission


def test_no_field_is_forgotten():
    """A field that is added to OverlayConfig must be sent to the child (TOLD), or be listed in NOT_TOLD."""
    assert set(TOLD) == {field.name for field in fields(OverlayConfig)} - NOT_TOLD
