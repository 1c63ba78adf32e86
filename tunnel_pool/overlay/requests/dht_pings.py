"""Pings of BitTorrent's DHT (BEP 5), and their answers. Pure."""


def ping(transaction: bytes, node_id: bytes) -> bytes:
    """Return a ping of BEP 5: {"a": {"id": ...}, "q": "ping", "ro": 1, "t": ..., "y": "q"}.

    By `ro` (BEP 43), the node does not take us for a node that it could ask.
    """
    length = str(len(transaction)).encode()
    return b"d1:ad2:id20:" + node_id + b"e1:q4:ping2:roi1e1:t" + length + b":" + transaction + b"1:y1:qe"


def answers(data: bytes, transaction: bytes) -> bool:
    """Return whether this is the response to that ping; of a bencoded dictionary, as much as is needed."""
    length = str(len(transaction)).encode()
    return data.startswith(b"d") and b"1:t" + length + b":" + transaction in data and b"1:y1:r" in data
