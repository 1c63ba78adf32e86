"""Values of options that hold a secret: others read what a command line says (/proc/PID/cmdline)."""

import argparse
import sys
from functools import cache
from pathlib import Path

FROM_ELSEWHERE = "@FILE reads it from a file, - from standard input: other users of this machine see a command line."
MOST_BYTES = 1 << 16


def secret_text(text: str) -> str:
    """Return the text itself, or the first line of standard input (`-`) or of a file (`@FILE`).

    Raises ArgumentTypeError where there is none.
    """
    if text == "-":
        found = _line_of_stdin()
    elif text.startswith("@"):
        try:
            with Path(text[1:]).expanduser().open(encoding="utf-8") as file:
                found = file.readline(MOST_BYTES)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise argparse.ArgumentTypeError(f"cannot read {text[1:]}: {why}") from None
    else:
        return text
    if not found.strip():
        place = "standard input" if text == "-" else text[1:]
        raise argparse.ArgumentTypeError(f"there is nothing in {place}")
    return found.strip()


@cache
def _line_of_stdin() -> str:
    """Return the first line; a command line is parsed once more with each reading of its configuration file."""
    return sys.stdin.readline(MOST_BYTES)
