"""Numbers that this repository can print: `tunnel-pool bench`."""
