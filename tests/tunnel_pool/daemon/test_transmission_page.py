"""Tests Debian's unchanged Transmission page (transmission-common) in a real browser."""

import asyncio
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.tunnel_pool.daemon.browser import browser, needs_chromium
from tests.tunnel_pool.daemon.running import connected, daemon, make_torrent
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

WEB_ROOT = Path("/usr/share/transmission/web")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(
        not (WEB_ROOT / "javascript/transmission.js").exists(),
        reason="needs Debian's page: apt-get install transmission-common",
    ),
]
ROW = "#torrent_list > li"


def named(page, name):
    return next(row for row in page.all(ROW) if name in row.text)


def by_menu(page, name, command):
    page.driver.switch_to.default_content()
    ActionChains(page.driver).context_click(named(page, name)).perform()
    page.click(f".ui-contextmenu li[data-command='{command}']")


def drive(address, profile, magnet, torrent_file, elsewhere):
    with browser(profile) as page:
        page.driver.get(f"http://{address}/transmission/web/")
        page.until(lambda: page.one("#toolbar-open").is_displayed(), "the page")
        page.click("#toolbar-open")
        page.until(lambda: page.one("#upload_container").is_displayed(), "the dialog")
        page.one("#torrent_upload_url").send_keys(magnet)
        page.click("#upload_confirm_button")
        page.until(lambda: "Seeding" in named(page, "random.bin").text, "the download")

        page.click("#toolbar-open")
        page.until(lambda: page.one("#upload_container").is_displayed(), "the dialog")
        page.one("#torrent_upload_file").send_keys(str(torrent_file))
        if page.one("#torrent_auto_start").is_selected():
            page.one("#torrent_auto_start").click()
        page.click("#upload_confirm_button")
        page.until(lambda: "Paused" in named(page, "show").text, "the second")

        named(page, "show").click()
        page.click("#toolbar-inspector")
        page.click("#inspector-tab-files")
        boxes = ".inspector_torrent_file_list_entry:not(.leaf) input, .leaf input, .file_wanted_control"
        page.until(lambda: len(page.all(boxes)) >= 2, "its files")
        page.all(boxes)[-1].click()
        page.screenshot("transmission-page.png")
        page.click("#toolbar-inspector")

        page.click("#prefs-button")
        page.click("#prefs-tab-speed a")
        page.click("#speed-limit-down-enabled")
        page.one("#speed-limit-down").send_keys(Keys.CONTROL, "a", Keys.NULL, "321", Keys.TAB)
        page.script("$('#prefs-dialog').dialog('close')")

        named(page, "random.bin").click()
        page.click("#toolbar-pause")
        page.until(lambda: "Paused" in named(page, "random.bin").text, "the pause")

        by_menu(page, "random.bin", "move")
        page.until(lambda: page.one("#move_container").is_displayed(), "where to")
        page.script("$('#torrent_path').val(arguments[0])", str(elsewhere))
        page.click("#move_confirm_button")
        page.until((elsewhere / "random.bin").exists, "the move")

        by_menu(page, "show", "remove")
        page.click("#dialog_confirm_button")
        page.until(lambda: len(page.all(ROW)) == 1, "the removal")


async def test_it_adds_selects_limits_pauses_moves_and_removes(tmp_path):
    torrent_file = tmp_path / "show.torrent"
    torrent_file.write_bytes(make_torrent(tmp_path / "made", "show", {"a.bin": 50_000, "b.bin": 70_000}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with (
        LocalSwarm(20 << 20, seeders=1, exits=2, relays=0, log_level="error") as swarm,
        daemon(tmp_path, "--hops=1", "--workers=1", f"--web-root={WEB_ROOT}", *network_of(swarm)) as (_, address),
    ):
        wanted = []
        client = await connected(address)

        async def watch():
            while True:
                wanted.extend(
                    [file.selected for file in torrent.get_files()]
                    for torrent in await asyncio.to_thread(client.get_torrents)
                    if torrent.name == "show"
                )
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        await asyncio.to_thread(drive, address, tmp_path / "profile", magnet_of(swarm), torrent_file, elsewhere)
        watching.cancel()
        assert sorted(wanted[-1]) == [False, True]
        session = await asyncio.to_thread(client.get_session)
        assert (session.speed_limit_down, session.speed_limit_down_enabled) == (321, True)
        (torrent,) = await asyncio.to_thread(client.get_torrents)
        assert (torrent.status, torrent.download_dir) == ("stopped", str(elsewhere))
        assert same_bytes(swarm.file, elsewhere / "random.bin")
        (saw,) = await swarm.peers_of_seeders()
        assert set(saw) <= {node.host for node in swarm.exits}
