"""Writes docs/COMPATIBILITY.md: page.md, with what tests/compatibility/matrix.py found.

python -m tests.compatibility.page FOUND.json docs/COMPATIBILITY.md
"""

import json
import sys
from pathlib import Path

TEXT = Path(__file__).with_name("page.md")


def page(found):
    """Return the page, by what the matrix found."""
    return TEXT.read_text().replace("WITHIN", str(found["within_s"])).replace("PEERS", "\n".join(_rows(found)))


def _rows(found):
    cells = {
        (each["program"], each["way"], each["encrypted"], each["hops"]): each.get("seconds") for each in found["cells"]
    }
    hops = sorted({each["hops"] for each in found["cells"]})
    columns = [f"{count} {'hop' if count == 1 else 'hops'}" for count in hops]
    yield f"| program | version | way | encryption | {' | '.join(columns)} |"
    yield "|---|---|---|---|" + "---|" * len(hops)
    for name, way, encrypted in dict.fromkeys(key[:3] for key in cells):
        seconds = [cells[name, way, encrypted, count] for count in hops]
        words = [f"{each:.1f}" if each is not None else "-" for each in seconds]
        program = found["programs"][name]
        what = "required" if encrypted else "off"
        yield f"| {name}, {program['origin']} | {program['version']} | {way} | {what} | {' | '.join(words)} |"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(json.loads(Path(sys.argv[1]).read_text())))
