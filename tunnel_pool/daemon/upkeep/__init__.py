"""Looks after the daemon's torrents: acts on alerts, brings finished files home, helps downloads that stand still."""
