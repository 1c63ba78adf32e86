"""The daemon over HTTP: its API, Transmission's RPC, Tribler's REST, the page, streams and metrics."""
