"""Stands in for the part of Tribler 8's core that tunnel_pool.tribler touches: its modules, names and order."""
