"""The clients whose datagrams circuits carry: lanes, associations, and the circuit of each destination."""
