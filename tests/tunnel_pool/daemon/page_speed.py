"""Prints how fast the page is with many downloads, in a real browser: `python -m tests.tunnel_pool.daemon.page_speed`.

It takes the number of downloads (1000). "paint_ms" is from the request of the page to its first paint, "rows_ms" to
the first rows, "update_ms" the longest script of ten updates in which every download has changed.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.tunnel_pool.daemon.browser import browser
from tests.tunnel_pool.daemon.running import daemon_here
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.torrent.metainfo import parse_torrent

UPDATE = """
const done = arguments[0];
(async () => {
  const table = await import("/page/table.js");
  const rows = await (await fetch("/api/torrents")).json();
  const took = [];
  for (let round = 0; round < 10; round += 1) {
    const changed = rows.map((row) => ({ ...row, progress: round / 10, down_bytes_per_s: 1000 * round }));
    const begun = performance.now();
    table.change({ changed, removed: [] }, false);
    took.push(performance.now() - begun);
  }
  done(Math.max(...took));
})();
"""
ROWS = """
const done = arguments[0];
const look = () => document.querySelector("#torrents tr") ? done(performance.now()) : setTimeout(look, 5);
look();
"""


def measured(address, profile):
    with browser(profile) as page:
        page.driver.get(f"http://{address}/")
        rows_ms = page.driver.execute_async_script(ROWS)
        paint_ms = page.script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
        update_ms = page.driver.execute_async_script(UPDATE)
        return {"paint_ms": round(paint_ms), "rows_ms": round(rows_ms), "update_ms": round(update_ms, 1)}


async def main(count):
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        async with daemon_here(state) as here:
            for number in range(count):
                link = parse_torrent(f"magnet:?xt=urn:btih:{number + 1:040x}&dn=A+download+with+a+name+{number}")
                await here.changes.add(link, AddRequest(hops=1, stopped=True, labels=[f"label {number % 7}"]))
            print(
                json.dumps({"downloads": count, **await asyncio.to_thread(measured, here.address, state / "profile")})
            )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
