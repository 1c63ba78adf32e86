"""A node in its operator's hands: limits, the exit's policy, metrics."""
