"""The daemon's own HTTP API, under /api."""
