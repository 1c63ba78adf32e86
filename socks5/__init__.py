"""SOCKS5 (RFC 1928) as libtorrent uses it: UDP ASSOCIATE and CONNECT, with a password (RFC 1929).

`address`, `messages` and `handshake` are pure; `server` is the Twisted shell.
Imports nothing of tunnel_pool, child or rpc.
"""
