"""The commands: what they are told, what they print, how they end."""
