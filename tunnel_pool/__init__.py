"""The main process: libtorrent, the SOCKS5 servers, and the pool of children that carry the circuits."""

__version__ = "0.1.0"
