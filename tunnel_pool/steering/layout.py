"""The layout of a message of py-ipv8's overlays, and of a cell (py-ipv8 community.py, payload.py). Pure.

A message:  prefix (22), message id (1), payload
A cell:     prefix (22), 0 (1), circuit id (4), plain text (1), relay early (1), message id and payload, encrypted
Decrypted:  prefix (22), message id (1), circuit id (4), payload
"""

PREFIX_BYTES = 22  # two of py-ipv8's version, 20 of the community's id
MESSAGE_ID_AT = PREFIX_BYTES
PAYLOAD_AT = MESSAGE_ID_AT + 1
CIRCUIT_ID_AT = MESSAGE_ID_AT + 1
AFTER_CIRCUIT_ID = CIRCUIT_ID_AT + 4
CELL_MESSAGE_AT = AFTER_CIRCUIT_ID + 2

# A sealed layer of a cell's message: a counter, the ciphertext, a tag (overlay/wire/session_keys.py).
COUNTER_BYTES = 8
TAG_BYTES = 16
FRESH_COUNTER = 1  # the counter of keys that have sealed nothing yet; the next one is used first
