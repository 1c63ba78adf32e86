"""Paths: the choice of the nodes that become a circuit's hops."""
