"""The daemon's torrents at work: which there are, what each does now, where its files are, and what is kept of it."""
