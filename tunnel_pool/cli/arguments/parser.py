"""A parser that says what is wrong in one line."""

import argparse
from typing import Any, NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; exit code 2. `added` are its options, in order."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.added: list[argparse.Action] = []
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.added.append(action)
        return action

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class CommandParser(OneLineParser):
    """Parses what follows a command, all of it: what is left over is of no other parser, and its own help is named."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return known, left
