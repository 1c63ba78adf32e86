"""A hop's session keys, by `cryptography`. Members are named as in py-ipv8's SessionKeys. Pure.

A sealed layer (py-ipv8's SessionKeys.encrypt_str):

    0                   8
    +-------------------+-----------------------+-----------+
    | counter, big      | ciphertext            | tag (16)  |
    | endian            |                       |           |
    +-------------------+-----------------------+-----------+

The nonce is the direction's salt (4 bytes), then the counter; there is no associated data.
"""

from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from ipv8.messaging.anonymization.crypto import TunnelCrypto
from ipv8.messaging.anonymization.tunnel import FORWARD

from tunnel_pool.steering.layout import COUNTER_BYTES, FRESH_COUNTER, TAG_BYTES

# The counter at which the borrower of keys begins, above all of the lender's, so that no nonce is used twice.
LENT_COUNTER = 1 << 40
_KEY_BYTES = 32
_SALT_BYTES = 4


class SessionKeys:
    """Seals and opens the layers of one hop. Of each direction: a key, a salt and the last counter that sealed here."""

    def __init__(
        self,
        key_forward: bytes,
        key_backward: bytes,
        salt_forward: bytes,
        salt_backward: bytes,
        *,
        salt_explicit_forward: int = FRESH_COUNTER,
        salt_explicit_backward: int = FRESH_COUNTER,
    ) -> None:
        """Raises ValueError for a key or a salt of a wrong length."""
        if len(salt_forward) != _SALT_BYTES or len(salt_backward) != _SALT_BYTES:
            raise ValueError(f"a salt has {_SALT_BYTES} bytes")
        self._forward, self._backward = ChaCha20Poly1305(key_forward), ChaCha20Poly1305(key_backward)
        self.key_forward, self.key_backward = key_forward, key_backward
        self.salt_forward, self.salt_backward = salt_forward, salt_backward
        self.salt_explicit_forward = salt_explicit_forward
        self.salt_explicit_backward = salt_explicit_backward

    @classmethod
    def derived_from(cls, shared_secret: bytes) -> "SessionKeys":
        """Derive the keys as all nodes of this wire do: HKDF-Expand (RFC 5869 section 2.3), SHA-256."""
        expanded = HKDFExpand(SHA256(), 2 * (_KEY_BYTES + _SALT_BYTES), b"key_generation").derive(shared_secret)
        keys, salts = expanded[: 2 * _KEY_BYTES], expanded[2 * _KEY_BYTES :]
        return cls(
            key_forward=keys[_KEY_BYTES:],
            key_backward=keys[:_KEY_BYTES],
            salt_forward=salts[_SALT_BYTES:],
            salt_backward=salts[:_SALT_BYTES],
        )

    def encrypt_str(self, content: bytes, direction: int) -> bytes:
        """Return the content sealed under the direction's next counter."""
        if direction == FORWARD:
            self.salt_explicit_forward += 1
            counter = self.salt_explicit_forward.to_bytes(COUNTER_BYTES, "big")
            return counter + self._forward.encrypt(self.salt_forward + counter, content, None)
        self.salt_explicit_backward += 1
        counter = self.salt_explicit_backward.to_bytes(COUNTER_BYTES, "big")
        return counter + self._backward.encrypt(self.salt_backward + counter, content, None)

    def decrypt_str(self, content: bytes, direction: int) -> bytes:
        """Return what a layer holds. Raises ValueError when it is too short, or not sealed by the other side."""
        if len(content) < COUNTER_BYTES + TAG_BYTES:
            raise ValueError("a layer cut short")
        counter, sealed = content[:COUNTER_BYTES], content[COUNTER_BYTES:]
        try:
            if direction == FORWARD:
                return self._forward.decrypt(self.salt_forward + counter, sealed, None)
            return self._backward.decrypt(self.salt_backward + counter, sealed, None)
        except InvalidTag:
            raise ValueError("a layer that the other side did not seal") from None


def lend(keys: Any) -> SessionKeys:
    """Return a copy of keys, ours or py-ipv8's, for another process: from now on that one alone seals backward."""
    return SessionKeys(
        bytes(keys.key_forward),
        bytes(keys.key_backward),
        bytes(keys.salt_forward),
        bytes(keys.salt_backward),
        salt_explicit_backward=LENT_COUNTER,
    )


class SessionCrypto(TunnelCrypto):
    """Makes SessionKeys of the secrets that py-ipv8 agrees on."""

    @staticmethod
    def generate_session_keys(shared_secret: bytes) -> SessionKeys:
        return SessionKeys.derived_from(shared_secret)
