"""Decides what of a torrent an anonymous libtorrent session may be given. Pure.

libtorrent reaches some of what a torrent names past the proxy: a WebTorrent tracker (`ws://`, `wss://`) by
the system's resolver, a STUN server and plain TCP, the DHT nodes of a torrent by the system's resolver. So
only what is known to go through the tunnels is let in, by scheme, and all else is left out.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

import libtorrent as lt

from tunnel_pool.overlay.ground.destinations import is_address
from tunnel_pool.overlay.serving.inner_names import is_inner_name

TRACKER_SCHEMES = ("http", "udp")
# By streams. Nobody but libtorrent reads what comes back, so that a tracker could give a peer's name to be looked up by
# the system's resolver: only a session that is locked down, which has no resolver, speaks TLS.
LOCKED_DOWN_SCHEMES = (*TRACKER_SCHEMES, "https")
HTTP_PORT, HTTPS_PORT = 80, 443
MAX_URL_CHARACTERS = 2048


class TrackerRules(NamedTuple):
    """Says which trackers and web seeds an anonymous session may have."""

    schemes: Collection[str] = TRACKER_SCHEMES
    inner_names: bool = False  # else an exit would hear which machines its client's network has


USUAL_RULES = TrackerRules()


def tracker_rules(is_locked_down: bool, is_private: bool) -> TrackerRules:
    """Return the rules of a session; the exits of a private network reach what names there stand for."""
    return TrackerRules(LOCKED_DOWN_SCHEMES if is_locked_down else TRACKER_SCHEMES, is_private)


def is_allowed_tracker(url: str, rules: TrackerRules = USUAL_RULES) -> bool:
    """Return whether an announce URL names a tracker that is asked through the tunnels."""
    if len(url) > MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    # libtorrent asks names in .i2p by a proxy of their own.
    if not host or port == 0 or parts.scheme not in rules.schemes or host.endswith(".i2p"):
        return False
    return rules.inner_names or is_address(host) or not is_inner_name(host)


TrackerPlace = tuple[str, str, int]


def tracker_place(url: str) -> TrackerPlace | None:
    """Return the scheme, host and port of an HTTP or UDP tracker, None of all others."""
    if not is_allowed_tracker(url, TrackerRules(inner_names=True)):
        return None
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or HTTP_PORT


def allowed_trackers(tiers: Iterable[Iterable[str]], rules: TrackerRules = USUAL_RULES) -> list[list[str]]:
    """Return the tiers with those trackers alone that `is_allowed_tracker` lets in."""
    kept = ([url for url in urls if is_allowed_tracker(url, rules)] for urls in tiers)
    return [urls for urls in kept if urls]


def strip(parameters: lt.add_torrent_params, rules: TrackerRules = USUAL_RULES) -> int:
    """Remove from the parameters what an anonymous session may not have; return how many trackers that were.

    Trackers stay by their scheme, and so do web seeds of BEP 19, but by HTTPS alone. Other web seeds (BEP 17) and DHT
    nodes (BEP 5) are removed. Peers are IP addresses already.
    """
    tiers = list(parameters.tracker_tiers) + [0] * len(parameters.trackers)
    entries = list(zip(parameters.trackers, tiers, strict=False))
    kept = [(url, tier) for url, tier in entries if is_allowed_tracker(url, rules)]
    parameters.trackers = [url for url, _ in kept]
    parameters.tracker_tiers = [tier for _, tier in kept]
    by_https = rules._replace(schemes=[scheme for scheme in rules.schemes if scheme == "https"])
    parameters.url_seeds = [url for url in parameters.url_seeds if is_allowed_tracker(url, by_https)]
    parameters.http_seeds = []
    parameters.dht_nodes = []
    # PEX would tell other peers the addresses of a hidden swarm's peers.
    parameters.flags |= lt.torrent_flags.disable_pex | lt.torrent_flags.disable_lsd
    # With these flags libtorrent uses the trackers and web seeds above alone, and not those of the metadata.
    parameters.flags |= lt.torrent_flags.override_trackers | lt.torrent_flags.override_web_seeds
    return len(entries) - len(kept)


def left_out_trackers(count: int, rules: TrackerRules = USUAL_RULES) -> str:
    """Return what the log says of trackers that `strip` removed."""
    names = "" if rules.inner_names else ", and no name of an inner network"
    *others, last = (f"{scheme}://" for scheme in rules.schemes)
    only = f"{', '.join(others)} and {last}"
    left_out = f"A torrent's trackers that can't be asked through the tunnels are left out: {count}"
    return f"{left_out} (only {only} can be{names})"
