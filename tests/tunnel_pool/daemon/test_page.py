"""Tests the page at / in a real browser, with a daemon that really downloads."""

import asyncio

import pytest
from selenium.webdriver.common.keys import Keys

from tests.tunnel_pool.daemon.browser import browser, needs_chromium
from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tests.worlds.feed_server import feed_of, feed_server
from tests.worlds.network import unused_host
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.daemon.storage.presence import not_found
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


def rows(page):
    return page.all("#torrents > tr")


def choose(page, selector, value):
    page.click(f"{selector} option[value='{value}']")


def write(page, selector, text):
    field = page.one(selector)
    field.clear()
    field.send_keys(text)


def said(page, text):
    """Wait until the page shows this message, then clear it."""
    page.until_text("#message", text)
    page.script("document.getElementById('message').textContent = ''")


def add_and_watch(page, magnet):
    page.until_text("#none", "none yet")
    page.one("#source").send_keys(magnet)
    choose(page, "#hops", 2)
    page.click("#add button")
    page.until_text("#torrents tr", "downloading")
    page.until(lambda: "B/s" in page.text("#torrents tr"), "its speed")
    page.screenshot("page.png")
    page.click("#tab-pool")
    page.until(lambda: page.all("#pool .path b:not(.wanted) + b:not(.wanted)"), "a circuit of two hops")
    page.screenshot("page-pool.png")
    page.click("#tab-downloads")
    page.until_text("#torrents tr", "seeding, 100 %")
    page.click("#tab-pool")
    page.until_text("#happenings", "seeding")
    page.until(lambda: page.all("#speed polyline"), "the graph")
    page.click("#tab-downloads")


def change_one(page):
    """Look at one download, and change all that the page lets one change of it."""
    page.click("#torrents .name")
    page.until_text("#files-of", "random.bin")
    page.until_text("#pieces figcaption", "pieces are there")
    page.until(lambda: page.all("#pieces rect"), "the picture of the pieces")
    choose(page, "#files-of select", "high")
    page.click("#details-title")
    page.until(lambda: page.one("#files-of select").get_property("value") == "high", "the priority")
    page.until(lambda: page.one("#change [name=hops]").get_property("value") == "2", "its hops")
    write(page, "#change [name=labels]", "tv, new")
    write(page, "#change [name=down]", "5000")
    write(page, "#change [name=ratio]", "3.5")
    choose(page, "#change [name=hops]", 3)
    page.click("#change button")
    said(page, "Saved.")
    page.until(lambda: page.all("#by-label option[value=tv]"), "its label")
    choose(page, "#change [name=hops]", 1)
    page.click("#change button")
    page.until(lambda: page.one("#fewer").is_displayed(), "the question")
    assert page.driver.switch_to.active_element.text == "Cancel"
    assert "instead of 3 hops" in page.text("#fewer-why")
    page.click("#fewer button[value='']")
    page.click("#change button")
    page.until(lambda: page.one("#fewer").is_displayed(), "the question again")
    page.click("#fewer button[value=fewer]")
    said(page, "Saved.")
    page.screenshot("page-details.png")
    assert page.serious() == []
    page.click("#details-close")
    page.until(lambda: not page.one("#details").is_displayed(), "no details")


def choose_several(page, torrent):
    page.click("#torrents input")
    page.until_text("#chosen-count", "1 selected")
    page.click("#stop")
    page.until_text("#torrents tr", "stopped")
    page.click("#start")
    page.until_text("#torrents tr", "seeding")
    page.click("#verify")
    said(page, "being checked")
    page.script(DROP, list(torrent))
    page.until(lambda: len(rows(page)) == 2, "what was dropped")
    page.click("#table thead [data-by=name]")
    page.until(lambda: "other" in rows(page)[0].text, "the order")
    page.click("#table thead [data-by=name]")
    page.until(lambda: "other" in rows(page)[1].text, "the other order")
    page.click("#table thead [data-by=name]")  # back to the order of the queue
    page.until(lambda: "random" in rows(page)[0].text, "the order of the queue")
    for row in rows(page):  # the other one is selected now, and not the first
        row.find_element("css selector", "input").send_keys(Keys.SPACE)
    page.click("#queue-top")
    page.until(lambda: "other" in rows(page)[0].text, "the other at the top")
    page.click("#queue-down")
    page.until(lambda: "other" in rows(page)[1].text, "the other at the bottom")
    page.click("#table thead [data-by=name]")
    page.click("#table thead [data-by=name]")
    page.one("#search").send_keys("OTH")
    page.until(lambda: len(rows(page)) == 1, "what is searched for")
    page.until_text("#count", "1 of 2")
    page.one("#search").send_keys(Keys.BACKSPACE * 3)
    choose(page, "#by-label", "tv")
    page.until(lambda: [row for row in rows(page) if "random.bin" in row.text] == rows(page), "those with the label")
    choose(page, "#by-label", "")
    choose(page, "#by-hops", 3)
    page.until_text("#none", "No download is like that.")
    choose(page, "#by-hops", "")
    page.until(lambda: len(rows(page)) == 2, "all of them")
    assert not page.one("#chosen").is_displayed()  # what is not shown is not selected
    # The one that was dropped is removed by the keyboard alone.
    rows(page)[1].find_element("css selector", "input").send_keys(Keys.SPACE)
    page.until_text("#chosen-count", "1 selected")
    page.one("#remove").send_keys(Keys.ENTER)
    page.until(lambda: page.one("#removing").is_displayed(), "the question")
    assert page.driver.switch_to.active_element.text == "Keep"
    page.one("#removing-files").send_keys(Keys.SPACE)
    page.one("#removing button[value=remove]").send_keys(Keys.ENTER)
    page.until(lambda: len(rows(page)) == 1, "its removal")


def set_all(page):
    page.click("#tab-settings")
    page.until(lambda: page.one("#settings [name=folder]").get_property("value"), "the settings")
    write(page, "#settings [name=down]", "9000")
    page.click("#settings button")
    said(page, "Saved.")
    page.click("#slow")
    assert page.serious() == []
    page.driver.refresh()
    page.until(lambda: page.one("#settings [name=down]").get_property("value") == "9000", "what was saved")
    page.until(lambda: page.one("#slow").is_selected(), "the slow mode")
    page.click("#slow")
    choose(page, "#language", "de")
    page.until_text("#tab-settings", "Einstellungen")
    heard = "return import('/page/texts.js').then((texts) => texts.heard(arguments[0]))"
    assert page.script(heard, not_found("/mnt/a: b")).startswith("in /mnt/a: b sind keine Daten: ")
    assert page.script(heard, "1 node and 2 exits are known, but no circuit is ready yet").startswith(
        "1 Knoten und 2 Exits"
    )
    assert page.script(heard, "something else") == "something else"
    choose(page, "#language", "en")
    page.until_text("#tab-settings", "Settings")


def read_feeds(page, url):
    page.click("#tab-feeds")
    page.until_text("#feeds-none", "none yet")
    assert page.serious() == []
    write(page, "#feed [name=url]", "http://tracker.example/rss")
    page.click("#feed button")
    said(page, "only https:// is asked")
    write(page, "#feed [name=url]", url)
    write(page, "#feed [name=name]", "mine")
    page.click("#feed button")
    said(page, "Added: mine")
    page.until_text("#feeds-of", "2, 2 new")
    page.click("#feeds-of .name")
    page.until_text("#articles-of", "<b>A show</b> S01E01")
    page.until(lambda: len(page.all("#rule [name=feeds] option")) == 1, "the feed to choose")
    write(page, "#rule [name=name]", "shows")
    write(page, "#rule [name=must]", "show")
    choose(page, "#rule [name=feeds]", 1)
    choose(page, "#rule [name=hops]", 3)
    write(page, "#rule [name=labels]", "tv, new")
    page.click("#rule [name=once]")
    page.click("#rule button")
    said(page, "Saved.")
    page.until_text("#articles-of", "added by shows")
    page.until_text("#feeds-of", "2, 1 new")
    page.screenshot("page-feeds.png")
    assert page.serious() == []
    page.click("#rules-of .name")
    page.until(lambda: page.one("#rule [name=hops]").get_property("value") == "3", "the rule in the form")
    page.click("#rule [name=enabled]")
    page.click("#rule button")
    said(page, "Saved.")
    page.until_text("#rules-of", "off")
    page.click("#articles-close")
    for table in ("#rules-of", "#feeds-of"):
        page.click(f"{table} td:last-child button[aria-label^=Remove]")
        page.until(lambda: page.one("#forgetting").is_displayed(), "the question")
        assert page.driver.switch_to.active_element.text == "Keep"
        page.click("#forgetting button[value=remove]")
        page.until(lambda table=table: not page.all(f"{table} > tr"), "nothing left")
    page.click("#tab-downloads")
    page.until(lambda: len(rows(page)) == 2, "what the rule has added")
    page.until(lambda: [row for row in rows(page) if "ab" * 20 in row.text], "its name")
    assert page.serious() == []


def drive(address, profile, magnet, torrent, feed):
    with browser(profile) as page:
        page.driver.get(f"http://{address}/")
        add_and_watch(page, magnet)
        change_one(page)
        choose_several(page, torrent)
        read_feeds(page, feed)
        set_all(page)
        page.click("#tab-downloads")
        page.one("#source").send_keys("no link")
        page.click("#add button")
        said(page, "no magnet link and no infohash")
        assert page.serious() == []
        page.click("#tab-pool")
        page.until(lambda: page.one("#scale").is_displayed(), "the number of children")
        page.script("document.getElementById('most').value = 2; document.getElementById('least').value = 2")
        page.click("#scale button")
        page.until(lambda: len(page.all("#pool > li")) == 3, "a second child")
        page.until_text("#pool > li:last-child", "running")
        assert page.serious() == []
        # But for the RPC's session id, and for the link that was none.
        refused = [f"http://{address}/api/{what} - Failed to load resource" for what in ("torrents", "feeds")]
        complaints = [each for each in page.complaints() if "409 (Conflict)" not in each]
        assert [each for each in complaints if not any(known in each for known in refused)] == []
        page.click("#tab-downloads")
        page.click("#theme")
        assert page.serious() == []
        page.screenshot("page-dark.png")
        page.driver.set_window_size(400, 1500)
        for name in ("feeds", "pool", "settings", "downloads"):
            page.click(f"#tab-{name}")
            assert page.script(TOO_WIDE) == []
            assert page.serious() == []
        page.screenshot("page-phone.png")


async def test_the_page_adds_watches_and_removes(tmp_path):
    other = make_torrent(tmp_path / "elsewhere", "other", {"a.bin": 50_000})
    async with (
        LocalSwarm(60 << 20, seeders=2, exits=3, relays=3, log_level="error", seeder_speed=2_000_000) as swarm,
        feed_server(unused_host()) as feeds,
        daemon(tmp_path, "--hops=1", "--workers=1", *network_of(swarm)) as (running, address),
    ):
        feeds.pages["/rss"] = feed_of(("<b>A show</b> S01E01", f"magnet:?xt=urn:btih:{'ab' * 20}"), ("Other", "/x"))
        feed = "http://{}:{}/rss".format(*feeds.address)
        await asyncio.to_thread(drive, address, tmp_path / "profile", magnet_of(swarm), other, feed)
        assert same_bytes(swarm.file, tmp_path / "downloads" / swarm.file.name)
        (saw, also_saw) = await swarm.peers_of_seeders()
        assert {*saw, *also_saw} <= {node.host for node in swarm.exits}
