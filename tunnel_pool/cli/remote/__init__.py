"""The commands that ask a running daemon over its API."""
