"""A torrent's trackers as Transmission's RPC shows them and changes them (docs/rpc-spec.md 3.2 and 3.3)."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tunnel_pool.daemon.changes.edits import Tiers
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.tiers import split_url
from tunnel_pool.daemon.server.tiers import entries_of
from tunnel_pool.daemon.torrents.view import TorrentView

EDITS = ("tracker_add", "tracker_remove", "tracker_replace")


def _tracker(number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    url = entry["url"]
    host = split_url(url).hostname or ""
    scrape = "/scrape".join(url.rsplit("/announce", 1)) if "/announce" in url else ""
    return {"id": number, "announce": url, "scrape": scrape, "tier": entry["tier"], "sitename": host.split(".")[-2:][0]}


def entries(torrent: TorrentView) -> list[dict[str, object]]:
    return [_tracker(number, entry) for number, entry in enumerate(entries_of(torrent))]


def stats(torrent: TorrentView) -> list[dict[str, object]]:
    """Return what is known of each tracker's answers; nobody is scraped."""
    all_stats, now_s = [], int(time.time())
    for number, entry in enumerate(entries_of(torrent)):
        parts = split_url(entry["url"])
        failed, heard = entry["fails"] > 0, torrent.trackers.get(entry["url"])
        next_s: object = entry["next_announce"]  # seconds since the epoch, which libtorrent's stubs don't know
        all_stats.append(
            {
                **_tracker(number, entry),
                "host": f"{parts.scheme}://{parts.netloc}",
                "announce_state": (3 if entry["updating"] else 1) if entry["is_asked"] else 0,
                "download_count": -1,
                "has_announced": heard is not None,
                "has_scraped": False,
                "is_backup": False,
                "last_announce_peer_count": heard.peers if heard is not None else 0,
                "last_announce_result": entry["message"] or ("Success" if entry["verified"] else ""),
                "last_announce_start_time": 0,
                "last_announce_succeeded": bool(entry["verified"] and not failed),
                "last_announce_time": int(heard.at_s) if heard is not None else 0,
                "last_announce_timed_out": False,
                "last_scrape_result": "",
                "last_scrape_start_time": 0,
                "last_scrape_succeeded": False,
                "last_scrape_time": 0,
                "last_scrape_timed_out": False,
                "leecher_count": entry["scrape_incomplete"],
                "next_announce_time": next_s if isinstance(next_s, int) and next_s > now_s else 0,
                "next_scrape_time": 0,
                "scrape_state": 0,
                "seeder_count": entry["scrape_complete"],
            }
        )
    return all_stats


def text(torrent: TorrentView) -> str:
    """Return announce URLs, one a line, with a blank line between tiers (BEP 12)."""
    return "\n\n".join("\n".join(urls) for urls in torrent.record.trackers)


def edited(tiers: Sequence[Sequence[str]], arguments: dict[str, Any]) -> Tiers:
    """Apply changes as made before Transmission 4.0, which name trackers by their number. Raises RequestError."""
    flat = [(number, url) for number, urls in enumerate(tiers) for url in urls]
    add, remove = arguments.get("tracker_add", []), arguments.get("tracker_remove", [])
    replace = arguments.get("tracker_replace", [])
    if not all(isinstance(given, list) for given in (add, remove, replace)) or len(replace) % 2:
        raise RequestError("invalid argument: trackers are changed by lists")
    for number, url in zip(replace[::2], replace[1::2], strict=True):
        if not isinstance(number, int) or not 0 <= number < len(flat):
            raise RequestError("invalid argument: there is no such tracker")
        flat[number] = flat[number][0], url
    kept: dict[int, list[str]] = {}
    for number, (tier, url) in enumerate(flat):
        if number not in remove and url not in remove:
            kept.setdefault(tier, []).append(url)
    return [*kept.values(), *([url] for url in add)]
