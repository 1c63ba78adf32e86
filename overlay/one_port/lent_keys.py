"""A hop's session keys for another process than the one that made them."""

from typing import Any

from ipv8_rust_tunnels import SessionKeys, generate_session_keys

# Where the borrower goes on counting: no nonce is used twice.
LENT_COUNTER = 1 << 40
_ANY_SECRET = bytes(64)


def session_keys(
    key_forward: bytes, key_backward: bytes, salt_forward: bytes, salt_backward: bytes, counter_backward: int
) -> SessionKeys:
    """Make py-ipv8's SessionKeys of their parts; its own function makes them of a shared secret alone."""
    keys: Any = generate_session_keys(_ANY_SECRET)
    keys.key_forward, keys.key_backward = key_forward, key_backward
    keys.salt_forward, keys.salt_backward = salt_forward, salt_backward
    keys.salt_explicit_backward = counter_backward
    made: SessionKeys = keys
    return made


def lend(keys: Any) -> SessionKeys:
    """Return a copy of the keys, by which the borrower alone seals backward from now on."""
    return session_keys(
        bytes(keys.key_forward),
        bytes(keys.key_backward),
        bytes(keys.salt_forward),
        bytes(keys.salt_backward),
        LENT_COUNTER,
    )
