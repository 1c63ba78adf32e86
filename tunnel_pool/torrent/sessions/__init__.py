"""libtorrent's sessions: one with no way out but the tunnels for each lane, and the way from it into them."""
