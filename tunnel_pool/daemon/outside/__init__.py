"""The daemon's requests to the web: through the tunnels by HTTPS, or directly in its owner's own network.

Nothing else of the daemon but its torrents without hops sends anything to the outside by itself.
"""
