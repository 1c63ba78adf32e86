"""What an operator configures and watches: limits, the exit's policy, metrics."""
