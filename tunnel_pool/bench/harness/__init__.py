"""What benchmarks run and measure with: contenders, loads, processes and reports."""
