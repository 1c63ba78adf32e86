"""The network on loopback that the demo, the benchmarks and the tests download from."""
