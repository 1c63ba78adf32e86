"""The page at / in a real browser, over a daemon that really downloads."""

import asyncio

import pytest
from selenium.webdriver.common.keys import Keys

from tests.tunnel_pool.daemon.browser import browser, needs_chromium
from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), needs_chromium]

DROP = """
const data = new DataTransfer();
data.items.add(new File([Uint8Array.from(arguments[0])], "dropped.torrent"));
document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
"""
TOO_WIDE = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > width + 1)
    .map((each) => each.outerHTML.slice(0, 100));
"""


def drive(address, profile, magnet, torrent):
    with browser(profile) as page:
        page.driver.get(f"http://{address}/")
        page.until_text("#none", "none yet")
        page.one("#source").send_keys(magnet)
        page.click("#hops option[value='2']")
        page.click("#add button")
        page.until_text("#torrents li", "downloading")
        page.until(lambda: page.all("#pool .path b:not(.wanted) + b:not(.wanted)"), "a circuit of two hops")
        page.until(lambda: "B/s down" in page.text("#torrents .facts"), "its speed")
        page.screenshot("page.png")
        page.until_text("#torrents li", "seeding, 100 %")
        assert "anonymous, 2 hops" in page.text("#torrents li")
        assert page.all("#speed polyline")
        page.until_text("#happenings", "seeding")

        page.click("#torrents details summary")
        page.until_text("#torrents details li", "random.bin")
        page.click("#torrents button")
        page.until_text("#torrents li", "stopped")

        # By drop, and removed again by the keyboard alone.
        page.script(DROP, list(torrent))
        page.until(lambda: len(page.all("#torrents > li")) == 2, "what was dropped")
        remove = page.all("#torrents > li")[1].find_elements("css selector", "button")[1]
        remove.send_keys(Keys.ENTER)
        page.until(lambda: page.one("#removing").is_displayed(), "the question")
        page.one("#removing-files").send_keys(Keys.SPACE)
        page.one("#removing button[value=remove]").send_keys(Keys.ENTER)
        page.until(lambda: len(page.all("#torrents > li")) == 1, "its removal")

        page.one("#source").send_keys("no link")
        page.click("#add button")
        page.until_text("#message", "no magnet link and no infohash")

        page.script("document.getElementById('most').value = 2; document.getElementById('least').value = 2")
        page.click("#scale button")
        page.until(lambda: len(page.all("#pool > li")) == 3, "a second child")
        page.until_text("#pool > li:last-child", "running")

        assert page.serious() == []
        (refused,) = page.complaints()
        assert f"http://{address}/api/torrents - Failed to load resource" in refused  # the link that was none
        page.click("#theme")
        assert page.serious() == []
        page.screenshot("page-dark.png")
        page.driver.set_window_size(400, 1500)
        assert page.script(TOO_WIDE) == []
        assert page.serious() == []
        page.screenshot("page-phone.png")


async def test_the_page_adds_watches_and_removes(tmp_path):
    other = make_torrent(tmp_path / "elsewhere", "other", {"a.bin": 50_000})
    async with (
        LocalSwarm(60 << 20, seeders=2, exits=3, relays=3, log_level="error", seeder_speed=2_000_000) as swarm,
        daemon(tmp_path, "--hops=1", "--workers=1", *network_of(swarm)) as (running, address),
    ):
        await asyncio.to_thread(drive, address, tmp_path / "profile", magnet_of(swarm), other)
        assert same_bytes(swarm.file, tmp_path / "downloads" / swarm.file.name)
        (saw, also_saw) = await swarm.peers_of_seeders()
        assert {*saw, *also_saw} <= {node.host for node in swarm.exits}
