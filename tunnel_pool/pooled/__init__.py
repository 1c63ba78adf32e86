"""A TunnelCommunity over a pool of children: what its callers see of it, and how the children's work is shared out."""
