"""libtorrent, and the way from it into the tunnels."""
