"""Tests block lists in their common formats, and damaged and hostile ones."""

import gzip
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent import blocklist
from tunnel_pool.torrent.blocklist import parse, read


def ranges(*lines):
    return [
        (str(ipaddress.ip_address(first)), str(ipaddress.ip_address(last))) for _, first, last in parse(lines).ranges
    ]


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [
        ("Some: name, 2:1.2.3.0-1.2.3.255", "1.2.3.0", "1.2.3.255"),
        ("001.002.003.000 - 001.002.003.009 , 000 , a name, with commas: 1-2", "1.2.3.0", "1.2.3.9"),
        ("Amazon.com, Inc., Seattle:1.2.3.0-1.2.3.255", "1.2.3.0", "1.2.3.255"),
        ("1.2.3.4-1.2.3.5", "1.2.3.4", "1.2.3.5"),
        ("  1.2.3.0/24  ", "1.2.3.0", "1.2.3.255"),
        ("1.2.3.77/24", "1.2.3.0", "1.2.3.255"),
        ("1.2.3.4", "1.2.3.4", "1.2.3.4"),
        ("2001:db8::/127", "2001:db8::", "2001:db8::1"),
    ],
)
def test_each_form_of_a_line_is_read(line, first, last):
    assert ranges(line) == [(first, last)]


def test_ranges_that_touch_are_one_and_what_is_no_line_is_counted():
    found = parse(["# a comment", "", "// another", "1.0.0.0-1.0.0.9", "x:1.0.0.10-1.0.0.20", "1.0.0.5/32", "nonsense",
                   "1.2.3.9-1.2.3.1", "1.2.3.999-2.0.0.0", "4.4.4.4 - 5.5.5.5 , 200 , allowed"])  # fmt: skip
    assert [(first, last) for _, first, last in found.ranges] == [(0x01000000, 0x01000014)]
    assert found.bad_lines == 3


@given(st.lists(st.text()))
def test_whatever_is_in_a_list_is_read_or_counted(lines):
    found = parse(lines)
    assert all(first <= last for _, first, last in found.ranges)
    assert found.bad_lines <= len(lines)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted), max_size=12))
def test_what_is_blocked_is_what_the_lines_say(pairs):
    found = parse(f"{ipaddress.ip_address(first)}-{ipaddress.ip_address(last)}" for first, last in pairs)
    blocked = found.filter()
    for number in range(302):
        expected = any(first <= number <= last for first, last in pairs)
        assert bool(blocked.access(str(ipaddress.IPv4Address(number)))) is expected
    assert len(found.ranges) <= len(pairs)


def test_packed_lists_and_several_of_them_are_read_and_what_is_none_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x:1.0.0.0-1.0.0.1\n"))
    (tmp_path / "b").write_text("2.0.0.0/8\n\xff\n", encoding="latin-1")
    assert len(read([tmp_path / "a.gz", tmp_path / "b"]).ranges) == 2
    (tmp_path / "empty").write_text("hello\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x:1.0.0.0-1.0.0.1\n" * 1000)[:-20])
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    for name, why in (
        ("none", "cannot read"),
        ("empty", "no address"),
        ("cut.gz", "cannot unpack"),
        (".", "cannot read"),
    ):
        with pytest.raises(UserError, match=why):
            read([tmp_path / name])
    monkeypatch.setattr(blocklist, "MAX_BYTES", 1 << 16)
    with pytest.raises(UserError, match="larger than"):
        read([tmp_path / "bomb.gz"])
