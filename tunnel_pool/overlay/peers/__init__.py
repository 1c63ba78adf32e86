"""Whom a node knows: how it finds peers, what it takes from strangers, and the DHT of introduction points."""
