"""libtorrent and its torrents: what a user names them by, their files, and what a session may be given of them."""
