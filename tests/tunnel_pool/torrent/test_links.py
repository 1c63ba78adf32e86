"""Tests how magnet links are found in what people paste, files hold and feeds say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.links import is_link, links_in, text_of
from tunnel_pool.torrent.metainfo import name_of, parse_link

HASH = "ab" * 20
LINK = f"magnet:?xt=urn:btih:{HASH}"
V2 = "cd" * 32


@pytest.mark.parametrize(
    ("text", "name", "trackers"),
    [
        (LINK, "", []),
        (f"  {LINK}\r\n", "", []),
        (f"\ufeff{LINK}&dn=a", "a", []),
        (f"MAGNET:?XT=URN:BTIH:{HASH.upper()}&DN=Name", "Name", []),
        (f"Magnet:?xt=urn:btih:{HASH}", "", []),
        (f"magnet://?xt=urn:btih:{HASH}", "", []),
        (f"magnet:?xt=urn%3ABTIH%3A{HASH}", "", []),
        (f"magnet:?dn=two words&xt=urn:btih:{HASH}", "two words", []),
        (f"magnet:?dn=a&amp;xt=urn:btih:{HASH}&amp;tr=http%3A%2F%2Ft%2Fa", "a", ["http://t/a"]),
        (f"{LINK}&dn=%FF%FEa", "\ufffd\ufffda", []),
        (f"{LINK}&dn=caf%C3%A9", "caf\u00e9", []),
        (f'"{LINK}&dn=a"', "a", []),
        (f"see <{LINK}&dn=a>", "a", []),
        ("magnet:?xt=urn:btih:VOV2XK5LVOV2XK5LVOV2XK5LVOV2XK5L&tr.1=udp%3A%2F%2Ft%3A1", "", ["udp://t:1"]),
        (HASH, "", []),
        (f" {HASH.upper()}\n", "", []),
    ],
)
def test_links_are_read_as_people_and_programs_write_them(text, name, trackers):
    parameters = parse_link(text)
    assert str(parameters.info_hashes.v1) == HASH
    assert (name_of(parameters), parameters.trackers) == (name, trackers)


def test_the_hash_of_version_2_is_an_infohash_too():
    assert str(parse_link(V2).info_hashes.v2) == V2
    assert str(parse_link(f"magnet:?xt=URN:BTMH:1220{V2}").info_hashes.v2) == V2


def test_a_text_holds_as_many_links_as_it_has():
    other = LINK.replace("ab", "ef")
    text = f"first\n{LINK}&dn=x y {other}\r\n\n{HASH}\nno {HASH} alone\nhttp://a/b"
    assert links_in(text) == [f"{LINK}&dn=x%20y", other, HASH]
    assert links_in("") == links_in("magnet") == []
    with pytest.raises(UserError, match="3 links in place of one"):
        parse_link(text)


@pytest.mark.parametrize("text", ["", "abc", "http://a/b", "x magnet:?xt=1", "magnet:"])
def test_what_is_no_link_is_none(text):
    assert not is_link(text)
    assert text.startswith("x ") or parse_link(text) is None


@pytest.mark.parametrize("link", ["magnet:?", "magnet:?dn=a", "magnet:?xt=urn:btih:12", "magnet:?xt=urn:sha1:aa"])
def test_a_link_to_no_torrent_is_refused_with_it(link):
    assert is_link(link)
    with pytest.raises(UserError, match="not a magnet link"):
        parse_link(link)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_are_read_in_the_encodings_that_editors_write(encoding):
    assert links_in(text_of(f"{LINK}\r\n".encode(encoding))) == [LINK]


@given(st.text() | st.text(alphabet="magnet:?xtur=&;%ab \n\ufeff"))
def test_any_text_is_read_and_read_once(text):
    links = links_in(text)
    assert links_in("\n".join(links)) == links


@given(st.binary())
def test_any_file_is_read(data):
    links_in(text_of(data))
