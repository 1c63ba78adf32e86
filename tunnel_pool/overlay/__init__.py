"""py-ipv8's TunnelCommunity as this project runs it.

The one place where both the main process (`--workers 0`) and a child get
their TunnelCommunity from: sockets with large buffers, circuit ids within a
slot, an exit policy, discovery. Imports neither tunnel_pool nor child.
"""
