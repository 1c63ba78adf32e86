"""The daemon: many torrents, each with its hop count, kept over restarts and driven by remote clients."""
