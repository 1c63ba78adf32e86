"""Transmission's RPC, in both its forms (github.com/transmission/transmission, docs/rpc-spec.md)."""
