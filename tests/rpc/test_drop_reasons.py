"""Tests that all counters of dropped datagrams have names from one list."""

import re

from tests.test_architecture import sources
from tests.worlds.commands import ROOT
from tunnel_pool.rpc.drop_reasons import DropReason


def names_of_the_engine():
    counters = (ROOT / "tunnel_pool" / "packet_engine" / "src" / "counters.rs").read_text()
    return set(re.findall(r'^    \w+ = "(\w+)",$', counters, re.MULTILINE))


def test_both_engines_count_under_names_of_the_list():
    names = names_of_the_engine()
    assert len(names) > 30
    assert names <= set(DropReason)


def test_no_counter_is_named_beside_the_list():
    for path in sources():
        beside = re.findall(r'(?:counters|drops)\["\w+"\]', path.read_text())
        assert beside == [], path


def test_every_name_is_counted_somewhere():
    text = "".join(path.read_text() for path in sources() if path.name != "drop_reasons.py")
    used = {reason for reason in DropReason if f"DropReason.{reason.name}" in text}
    assert set(DropReason) - used <= names_of_the_engine()
