"""What a circuit is asked for beside datagrams: HTTP requests, nodes of BitTorrent's DHT, speed tests."""
