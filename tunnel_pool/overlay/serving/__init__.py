"""Serving others: the circuits that a node joins, what it lets out as an exit, and how fast."""
