"""Looks after the daemon's torrents: acts on alerts, brings finished files home, and helps downloads that stand still."""
