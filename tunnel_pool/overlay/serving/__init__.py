"""What a node does for others: circuits that it joins, what it lets out as an exit, and how fast."""
