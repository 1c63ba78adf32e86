"""Tests the daemon's global settings: a change holds at once and after a restart, or is refused."""

import asyncio

import libtorrent as lt
import pytest
from qbittorrentapi import APIError, Client

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.torrents.sessions import PLAIN_LANE
from tunnel_pool.torrent.metainfo import parse_torrent

UNAVAILABLE = {
    "anti_brute_force_threshold": 100, "blocklist_enabled": True, "blocklist_url": "http://a/b", "cache_size_mb": 64,
    "default_trackers": "udp://192.0.2.1:1",
    "peer_port": 1234, "peer_port_random_on_start": True, "port_forwarding_enabled": True,
    "queue_stalled_enabled": True, "rename_partial_files": True, "script_torrent_done_enabled": True,
    "script_torrent_done_filename": "/bin/true", "tcp_enabled": False, "trash_original_torrent_files": True,
}  # fmt: skip


@pytest.fixture
def plain_file(seeder):
    """Return a magnet link of a file whose seeder encrypts nothing."""
    seeder.session.apply_settings({"in_enc_policy": int(lt.enc_policy.disabled)})
    return seeder.link_to("t", {"a": 100_000})


def plain_settings_of(here):
    return here.library.sessions.ensure_open(PLAIN_LANE)._session.get_settings()


async def shown_to(rpc):
    shown = await rpc.call("session_get")
    return {name: value for name, value in shown.items() if name != "download_dir_free_space"}


async def refusal(rpc, **arguments):
    _, answer = await rpc.post({"jsonrpc": "2.0", "method": "session_set", "params": arguments, "id": 1})
    return answer["error"]["message"]


async def test_what_is_not_there_can_not_be_set(tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        before = await shown_to(rpc)
        for name, value in UNAVAILABLE.items():
            said = await refusal(rpc, **{name: value})
            assert said.startswith(f"{name.replace('_', '-')} can't be changed here: ")
        await rpc.call("session_set", before)  # as clients do that have one form for all
        await rpc.call("session_set", {"what_nobody_knows": 1})
        assert await shown_to(rpc) == before


async def test_a_form_is_set_but_for_what_can_not_be_set(tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        said = await refusal(
            rpc, **{**await shown_to(rpc), "speed_limit_down": 55, "lpd_enabled": True, "peer_port": 1}
        )
        assert said.startswith("peer-port can't be changed here: ")
        assert said.endswith("; all else is set")
        shown = await shown_to(rpc)
        assert (shown["speed_limit_down"], shown["lpd_enabled"]) == (55, True)
        client = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        with pytest.raises(APIError, match=r"web_ui_password.*all else is set"):
            await asyncio.to_thread(client.app_set_preferences, {"web_ui_password": "x", "dl_limit": 66_000})
        assert (await shown_to(rpc))["speed_limit_down"] == 66


async def test_privacy_settings_hold_for_plain_torrents_at_once_and_after_a_restart(tmp_path):
    chosen = {"encryption": "required", "dht_enabled": False, "pex_enabled": False, "utp_enabled": False}
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        torrent, _ = await here.changes.add(parse_torrent("ab" * 20), AddRequest(hops=0))
        assert not torrent.handle.flags() & lt.torrent_flags.disable_pex
        assert plain_settings_of(here)["out_enc_policy"] == int(lt.enc_policy.enabled)
        await rpc.call("session_set", chosen)
        assert torrent.handle.flags() & lt.torrent_flags.disable_pex
        another, _ = await here.changes.add(parse_torrent("cd" * 20), AddRequest(hops=0))
        assert another.handle.flags() & lt.torrent_flags.disable_pex
        check_private(plain_settings_of(here))
        assert "invalid argument" in await refusal(rpc, encryption="perhaps")
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        check_private(plain_settings_of(here))
        shown = await rpc.call("session_get")
        assert {name: shown[name] for name in chosen} == chosen


def check_private(settings):
    assert settings["out_enc_policy"] == settings["in_enc_policy"] == int(lt.enc_policy.forced)
    assert settings["allowed_enc_level"] == int(lt.enc_level.rc4)
    assert not settings["enable_dht"]
    assert not settings["enable_outgoing_utp"]
    assert not settings["enable_incoming_utp"]


async def test_the_schedule_turns_the_alternative_speeds_on_and_a_client_may_turn_them_off(tmp_path):
    always = {"alt_speed_time_enabled": True, "alt_speed_time_begin": 0, "alt_speed_time_end": 24 * 60}
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        await rpc.call("session_set", always)
        await until(lambda: here.library.records.settings.alt_speed_enabled)
        await rpc.call("session_set", {"alt_speed_enabled": False})
        for _ in range(3):
            here.library.scheduler.tick()
            await asyncio.sleep(0)
        assert not (await rpc.call("session_get"))["alt_speed_enabled"]
        await rpc.call("session_set", {"alt_speed_enabled": True, "alt_speed_time_begin": 24 * 60})
        await until(lambda: not here.library.records.settings.alt_speed_enabled)


async def test_who_wants_encryption_meets_nobody_without(plain_file, tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        await rpc.call("session_set", {"encryption": "required"})
        torrent, _ = await here.changes.add(parse_torrent(plain_file), AddRequest(hops=0))
        await asyncio.sleep(2)  # without encryption, it would be there by now
        assert not torrent.summary.total_done
        await rpc.call("session_set", {"encryption": "tolerated"})
        await here.changes.hops.open_anew(torrent)  # libtorrent waits before it tries a peer again
        await until(lambda: torrent.is_finished, 60)
