"""A child process: it runs one TunnelCommunity, driven over the three streams.

`python -m child` is never typed by a person: the main process starts it by
running its own executable again with a switch. Imports nothing of tunnel_pool.
"""
