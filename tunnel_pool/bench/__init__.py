"""Numbers that this repository can print: `python -m tunnel_pool.bench`."""
