"""Tests bandwidth groups: torrents that share a speed limit."""

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest, Run
from tunnel_pool.daemon.rules.groups import Group, Member, shares
from tunnel_pool.torrent.metainfo import parse_torrent

SLOW = {"speed_limit_down": 400, "speed_limit_down_enabled": True}


@given(
    st.dictionaries(st.sampled_from("abc"), st.builds(Group, st.just(True), st.integers(0, 5000), st.booleans())),
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 10**7)), max_size=12),
)
def test_what_the_torrents_of_a_group_may_take_is_its_limit_in_all(groups, torrents):
    members = [Member(number, group, down, 0) for number, (group, down) in enumerate(torrents)]
    found = shares(members, groups)
    assert found.keys() == {member.number for member in members if member.group in groups}
    for name, group in groups.items():
        limit, _ = group.limits()
        those = [found[member.number][0] for member in members if member.group == name]
        if not limit:
            assert not any(those)
        elif those:
            assert all(those)
            assert sum(those) <= max(limit, len(those))


async def test_two_downloads_of_a_group_together_keep_its_limit(seeder, tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        await rpc.call("group_set", {"name": "slow", **SLOW})
        torrents = []
        for name in ("t", "u"):
            link = parse_torrent(seeder.link_to(name, {"a": 3_000_000}))
            torrents.append((await here.changes.add(link, AddRequest(hops=0, stopped=True)))[0])
        await rpc.call("torrent_set", {"ids": [1, 2], "group": "slow"})
        assert {row["group"] for row in (await rpc.call("torrent_get", {"fields": ["group"]}))["torrents"]} == {"slow"}
        await here.changes.apply(torrents, Run())
        await until(lambda: sum(torrent.totals.downloaded for torrent in torrents) > 500_000)
        begun_s, begun = time.monotonic(), sum(torrent.totals.downloaded for torrent in torrents)
        await until(lambda: sum(torrent.totals.downloaded for torrent in torrents) > begun + 1_200_000, 30)
        assert time.monotonic() - begun_s > 1.5  # at the seeder's speed it takes a tenth of a second
        await rpc.call("group_set", {"name": "slow", "speed_limit_down_enabled": False})
        await until(lambda: all(torrent.is_finished for torrent in torrents), 5)


async def test_groups_are_shown_and_kept_and_wrong_ones_refused(tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        assert (await rpc.call("group_get"))["group"] == []
        await rpc.call("group_set", {"name": "slow", **SLOW})
        await rpc.call("group_set", {"name": "fast", "speed_limit_up": 5})
        wrong_ones = ({}, {"name": ""}, {"name": "x" * 300}, {"name": "a", "speed_limit_up": -1})
        for wrong in (*wrong_ones, {"name": "a", "honors_session_limits": False}):
            _, answer = await rpc.post({"jsonrpc": "2.0", "method": "group_set", "params": wrong, "id": 1})
            assert "error" in answer
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        shown = (await rpc.call("group_get", {"group": ["slow"]}))["group"]
        assert shown == [
            {
                "name": "slow",
                "honors_session_limits": True,
                **SLOW,
                "speed_limit_up": 0,
                "speed_limit_up_enabled": False,
            }
        ]
        assert [group["name"] for group in (await rpc.call("group_get"))["group"]] == ["fast", "slow"]
        assert "groups" not in await rpc.call("session_get")
