"""Tells whether bytes are one bencoded value (BEP 3). Pure; nothing is built."""

_END, _LIST, _DICTIONARY, _INTEGER, _COLON = b"e", b"l", b"d", b"i", b":"
MAX_DEPTH = 64
MAX_VALUES = 20_000  # the most values, ends of lists and dictionaries included
MAX_DIGITS = 20


def is_bencoded(data: bytes) -> bool:
    """Return whether these bytes are one whole value, with nothing after it."""
    position, depth, values = 0, 0, 0
    while position < len(data) and values < MAX_VALUES:
        values += 1
        first = data[position : position + 1]
        if first in (_LIST, _DICTIONARY):
            depth += 1
            position += 1
        elif first == _END and depth:
            depth -= 1
            position += 1
        else:
            end = _end_of_integer(data, position) if first == _INTEGER else _end_of_string(data, position)
            if end is None:
                return False
            position = end
        if depth > MAX_DEPTH:
            return False
        if depth == 0:
            return position == len(data)
    return False


def _end_of_integer(data: bytes, position: int) -> int | None:
    end = data.find(_END, position, position + MAX_DIGITS + 2)
    digits = data[position + 1 : end].removeprefix(b"-")
    return end + 1 if end > 0 and digits.isdigit() else None


def _end_of_string(data: bytes, position: int) -> int | None:
    colon = data.find(_COLON, position, position + MAX_DIGITS)
    if colon < 0 or not data[position:colon].isdigit():
        return None
    end = colon + 1 + int(data[position:colon])
    return end if end <= len(data) else None
