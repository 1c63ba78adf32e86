"""The harness of benchmarks: contenders, loads, processes and reports."""
