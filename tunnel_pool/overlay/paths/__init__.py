"""Which nodes become the hops of a circuit."""
