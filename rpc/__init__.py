"""The three streams between the main process and a child.

Control (protobuf calls), data (datagrams with a fixed binary header) and exit
(one request to end, one report). Everything but `streams` is pure: bytes and
times go in, messages and bytes come out. Imports nothing of tunnel_pool,
child or socks5, so that both ends can use it.
"""
