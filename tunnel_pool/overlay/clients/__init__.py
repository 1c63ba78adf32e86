"""Whose datagrams a circuit carries: lanes, associations, and the circuit of each destination."""
