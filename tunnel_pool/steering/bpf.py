"""Classic BPF programs, as far as steering needs them (linux/filter.h, Documentation/networking/filter.rst). Pure."""

import struct
from collections.abc import Sequence

Instruction = tuple[int, int, int, int]  # code, jt, jf, k: struct sock_filter

# Code, and what it does with the accumulator A, the index X and the memory M
LD_WORD, LD_HALF, LD_BYTE = 0x20, 0x28, 0x30  # A = packet[k], big endian
LD_LENGTH = 0x80  # A = length of the packet
LD_MEMORY, STORE = 0x60, 0x02  # A = M[k], M[k] = A
TAX = 0x07  # X = A
ADD, ADD_X = 0x04, 0x0C  # A += k, A += X
MUL = 0x24  # A *= k
XOR_X = 0xAC  # A ^= X
AND = 0x54  # A &= k
RSH = 0x74  # A >>= k
JUMP = 0x05  # skip k
JEQ, JGE = 0x15, 0x35  # skip jt or jf
RET, RET_A = 0x06, 0x16  # return k, return A

EVERYTHING = 0xFFFFFFFF  # how much of a datagram a filter lets through

_FILTER = struct.Struct("=HBBI")


def ret(value: int) -> list[Instruction]:
    return [(RET, 0, 0, value)]


def choose(runs: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return a binary search of A over runs: the first value of each, and the instructions for it, which return."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    left, right = choose(runs[:middle]), choose(runs[middle:])
    # Conditional jumps reach 255 instructions, the unconditional one any.
    return [(JGE, 0, 1, runs[middle][0]), (JUMP, 0, 0, len(left)), *left, *right]


def if_equal(at: int, expected: bytes, then: Sequence[Instruction]) -> list[Instruction]:
    """Run `then`, which returns, when the packet has `expected` at this offset; else go on behind it."""
    parts = []
    offset = 0
    while offset < len(expected):
        load, size = next((load, size) for load, size in _LOADS if offset + size <= len(expected))
        parts.append((load, at + offset, int.from_bytes(expected[offset : offset + size], "big")))
        offset += size
    program: list[Instruction] = []
    for left, (load, where, value) in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        program += [(load, 0, 0, where), (JEQ, 0, 2 * left + len(then), value)]
    return [*program, *then]


_LOADS = ((LD_WORD, 4), (LD_HALF, 2), (LD_BYTE, 1))


def pack(program: Sequence[Instruction]) -> bytes:
    """Return an array of struct sock_filter."""
    return b"".join(_FILTER.pack(*instruction) for instruction in program)


def count(packed: bytes) -> int:
    return len(packed) // _FILTER.size
