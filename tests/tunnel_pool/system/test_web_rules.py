"""Tests which browser requests are refused, and how many connections each visitor may have."""

import pytest

from tunnel_pool.system.shares import ROOM, Decision, Shares, Visitor
from tunnel_pool.system.web_rules import PAGE_COOKIE, WebRefusal, is_known_host, is_own_page, web_refusal

OWNER, A, B = Visitor("user 1", is_owner=True), Visitor("user 2"), Visitor("192.0.2.7")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9091", True), ("[::1]:9091", True), ("localhost", True), ("192.0.2.7", True), ("NAS.local:1", True),
        ("evil.example", False), ("localhost.evil.example:9091", False), ("127.0.0.1.evil.example", False),
        ("", False), (None, False), ("[", False), ("a:b", False),
    ],
)  # fmt: skip
def test_a_name_that_others_point_at_us_is_refused(host, known):
    assert is_known_host(host, ["nas.local"]) is known


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        (None, True), ("http://127.0.0.1:9091", True), ("http://127.0.0.1:80", False), ("null", False),
        ("https://evil.example", False), ("http://[", False),
    ],
)  # fmt: skip
def test_a_page_of_others_is_refused(origin, own):
    assert is_own_page(origin, "127.0.0.1:9091") is own


def asked(path="/stream/x/0", method="GET", **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return web_refusal(method, path, {"Host": "127.0.0.1:9091", **names}, (), ("/",))


LINK = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "a site of tomorrow"])
def test_other_sites_reach_the_page_by_a_link_and_nothing_else(site):
    assert asked("/", Sec_Fetch_Site=site, **LINK) is None
    for refused in (
        asked("/stream/x/0", Sec_Fetch_Site=site, **LINK),
        asked("/", method="POST", Sec_Fetch_Site=site, **LINK),
        asked("/", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image"),
        asked("/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe"),
        asked("/", Sec_Fetch_Site=site),
    ):
        assert refused is WebRefusal.ANOTHER_SITE


def test_programs_the_user_and_our_own_page_reach_everything():
    assert asked() is None
    assert asked(Sec_Fetch_Site="none", **LINK) is None
    assert asked(Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty") is None


def test_a_browser_that_does_not_say_whose_link_it_follows_shows_by_a_cookie_that_it_was_here():
    assert asked(Upgrade_Insecure_Requests="1") is WebRefusal.ANOTHER_SITE
    assert asked("/", Upgrade_Insecure_Requests="1") is None
    assert asked(Upgrade_Insecure_Requests="1", Cookie=f"a=b; {PAGE_COOKIE}=1") is None


def test_a_page_of_others_and_another_host_are_refused_before_all():
    assert asked("/", Origin="http://evil.example") is WebRefusal.ANOTHER_PAGE
    assert web_refusal("GET", "/", {"Host": "evil.example"}, (), ("/",)) is WebRefusal.UNKNOWN_HOST


def filled(shares, visitor, count, first=0):
    for number in range(first, first + count):
        assert shares.decide(visitor) == ROOM
        shares.opened((visitor.name, number), visitor)


def test_others_have_a_share_of_the_connections_and_each_of_them_a_smaller_one():
    shares = Shares(most=10, most_of_others=6, most_of_one=4)
    filled(shares, A, 4)
    shares.begins((A.name, 0))
    assert shares.decide(A) == Decision(True, (A.name, 1))  # its own that has been idle for longest
    filled(shares, B, 2)
    assert shares.decide(B) == Decision(True, (A.name, 1))
    for number in range(4):
        shares.begins((A.name, number))
        shares.begins((B.name, number))
    assert shares.decide(B) == Decision(False)
    filled(shares, OWNER, 4)


def test_the_owner_always_gets_in():
    shares = Shares(most=4, most_of_others=3, most_of_one=3)
    filled(shares, A, 3)
    filled(shares, OWNER, 1)
    for number in range(3):
        shares.begins((A.name, number))
    assert shares.decide(OWNER) == Decision(True, (A.name, 0))
    shares.closed((A.name, 0))
    shares.opened((OWNER.name, 1), OWNER)
    assert shares.decide(OWNER) == Decision(True, (A.name, 1))
    shares.ends((A.name, 2))
    assert shares.decide(OWNER) == Decision(True, (A.name, 2))
    assert len(shares) == 4


def test_what_is_closed_is_forgotten():
    shares = Shares(most=2, most_of_others=1, most_of_one=1)
    filled(shares, A, 1)
    shares.begins((A.name, 0))
    assert not shares.decide(A).is_taken
    shares.closed((A.name, 0))
    shares.closed((A.name, 0))
    assert shares.decide(A) == ROOM
