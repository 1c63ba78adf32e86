"""Tribler's core with our tunnel community in the place of its own: `python -m tunnel_pool.tribler --workers N`."""
