"""Measures what the lengths of cells tell a relay of its place in a circuit, and how far drawn ones would help. Pure.

Each layer of encryption adds 24 bytes, and nothing pads: of three hops, the first sees a message with three layers.
Each circuit could draw how many layers' worth its packets are smaller, so that one length belongs to several places.
That is gone through here exactly, all draws and all places, for relays that look at cells of several kinds. `python -m
tunnel_pool.gumby_experiments.cell_lengths` prints the table.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

LAYER_BYTES = 24  # counter and tag (packet_engine/src/keys.rs)
LARGEST_BYTES = 1347  # a message of a circuit over Ethernet (packet_engine/src/routes.rs, largest_message)
SMALLEST_BYTES = 1200  # a QUIC packet that is as short as its rules let one be made (RFC 9000 section 14)
HOPS = 3

# How much of a circuit's draw each kind of cell is smaller by.
FULL = Fraction(1)
PROBE = Fraction(1, 2)  # of the path's MTU, which QUIC looks for half-way between 1,200 and the largest (RFC 8899)
FIXED = Fraction(0)  # a connection's first packet, which is padded to 1,200; uTP's headers; control cells

WATCHED = {
    "full cells alone": (FULL,),
    "full cells, and probes of the path": (FULL, PROBE),
    "full cells, and a packet of a length that all know": (FULL, FIXED),
}
MOST_DRAWS = (LARGEST_BYTES - SMALLEST_BYTES) // LAYER_BYTES + 1
DRAWS = (1, 4, MOST_DRAWS, 14)


def best_guess(watched: Sequence[Fraction], draws: int, hops: int = HOPS) -> Fraction:
    """Return how often a relay names its place right that guesses as well as can be.

    It sees one cell of each kind that is `watched`. The circuit's packets are smaller by 0 to `draws` - 1 layers.
    """
    seen: defaultdict[tuple[Fraction, ...], Counter[int]] = defaultdict(Counter)
    for draw in range(draws):
        for layers in range(1, hops + 1):
            seen[tuple(layers - share * draw for share in watched)][layers] += 1
    return Fraction(sum(max(places.values()) for places in seen.values()), draws * hops)


def cost(draws: int) -> Fraction:
    """Return the share of a full cell's bytes that is given up, on average."""
    return Fraction((draws - 1) * LAYER_BYTES, 2 * LARGEST_BYTES)


def table() -> str:
    """Return the figures as lines of text."""
    lines = [f"a relay of {HOPS} hops names its place right; by chance: {1 / HOPS:.1%}"]
    for name, watched in WATCHED.items():
        for draws in DRAWS:
            fits = "" if draws <= MOST_DRAWS else f" (QUIC has no room for more than {MOST_DRAWS})"
            guess, given_up = float(best_guess(watched, draws)), float(cost(draws))
            lines.append(f"{name}, {draws} draws: {guess:.1%}, for {given_up:.1%} of each full cell{fits}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
