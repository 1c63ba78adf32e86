"""Several sockets on one UDP port, and which of them a datagram goes to (Linux: SO_REUSEPORT, classic BPF)."""
