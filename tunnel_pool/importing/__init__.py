"""Torrents as other BitTorrent programs keep them, read for a daemon that takes them over. Nothing there is changed."""
