"""Has others find the torrents of a lane: what trackers and the DHT are told, and over which circuit."""
