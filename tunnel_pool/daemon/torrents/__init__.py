"""The daemon's torrents at work: which there are, what they do now, and what their owner has them do."""
