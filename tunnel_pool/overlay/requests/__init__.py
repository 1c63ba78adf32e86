"""Requests over circuits beside datagrams: HTTP requests, nodes of BitTorrent's DHT, speed tests."""
