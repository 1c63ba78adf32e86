"""SOCKS5 (RFC 1928) as libtorrent uses it: no authentication, UDP ASSOCIATE.

`address`, `messages` and `handshake` are pure; `server` is the Twisted shell.
Imports nothing of tunnel_pool, child or rpc.
"""
