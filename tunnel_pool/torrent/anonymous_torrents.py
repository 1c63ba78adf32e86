"""What of a torrent an anonymous libtorrent session may be given. Pure.

libtorrent reaches some of what a torrent names past the proxy: a WebTorrent tracker (`ws://`, `wss://`) by
the system's resolver, a STUN server and plain TCP, the DHT nodes of a torrent by the system's resolver. So
only what is known to go through the tunnels is let in, by scheme, and all else is left out.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import libtorrent as lt

# HTTPS is not among them: an exit makes a single request for us, and reads the answer (overlay/requests/http.py).
TRACKER_SCHEMES = ("http", "udp")
MAX_URL_CHARACTERS = 2048


def is_allowed_tracker(url: str) -> bool:
    """Return whether an announce URL names a tracker that is asked through the tunnels."""
    if len(url) > MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    # libtorrent asks names in .i2p by a proxy of their own.
    return parts.scheme in TRACKER_SCHEMES and bool(host) and port != 0 and not str(host).endswith(".i2p")


def allowed_trackers(tiers: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the tiers with those trackers alone that `is_allowed_tracker` lets in."""
    kept = ([url for url in urls if is_allowed_tracker(url)] for urls in tiers)
    return [urls for urls in kept if urls]


def strip(parameters: lt.add_torrent_params) -> int:
    """Remove from the parameters what an anonymous session may not have; return how many trackers that were.

    Trackers stay by their scheme. Web seeds (BEP 17 and 19) and DHT nodes (BEP 5) are named by whoever made
    the torrent, and are removed. Peers are IP addresses already.
    """
    tiers = list(parameters.tracker_tiers) + [0] * len(parameters.trackers)
    entries = list(zip(parameters.trackers, tiers, strict=False))
    kept = [(url, tier) for url, tier in entries if is_allowed_tracker(url)]
    parameters.trackers = [url for url, _ in kept]
    parameters.tracker_tiers = [tier for _, tier in kept]
    parameters.url_seeds = []
    parameters.http_seeds = []
    parameters.dht_nodes = []
    # PEX would tell other peers the addresses of a hidden swarm's peers.
    parameters.flags |= lt.torrent_flags.disable_pex | lt.torrent_flags.disable_lsd
    # With these flags libtorrent uses the trackers and web seeds above alone, and not those of the metadata.
    parameters.flags |= lt.torrent_flags.override_trackers | lt.torrent_flags.override_web_seeds
    return len(entries) - len(kept)


def left_out_trackers(count: int) -> str:
    """Return what the log says of trackers that `strip` removed."""
    schemes = " and ".join(f"{scheme}://" for scheme in TRACKER_SCHEMES)
    return f"A torrent's trackers that can't be asked through the tunnels are left out: {count} (only {schemes} can be)"
