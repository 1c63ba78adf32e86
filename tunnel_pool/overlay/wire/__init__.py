"""The node's UDP socket, and the packet path of the Python engine."""
