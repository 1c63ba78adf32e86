"""Scenario files: which node does what, and when. The grammar is Gumby's (Tribler/gumby, gumby/scenario.py). Pure.

    TIME VERB [ARGUMENT ...] [NAME=VALUE ...] [{PEERS}]

    TIME       [@][[H:]M:]S, seconds since the start; or @! for at once, as the file is read
    ARGUMENT   a word, quoted as in a shell
    PEERS      {1,2}, {3-6}, {!1}: nodes by number; without it, all of them
    $NAME      replaced, in all of a line, by what `@! set NAME VALUE` or the configuration says

    &include FILE      its lines, here
    &module DOTTED     where verbs are: a class of this name
    # ...              nothing

Unlike Gumby, what can't be read ends the reading: a line that nobody
understands must not pass for an experiment. Lines of one time are carried out in
order, and the clock stands still while a verb that waits is waiting. So a
scenario's times are the least that a run takes, not what a slow machine must keep.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tunnel_pool.gumby_experiments.plan.errors import ScenarioError

_VARIABLE = re.compile(r"\$(\w+)")
_DIRECTIVE = re.compile(r"&(\w+)\s+(\S.*)")
_NAMED = re.compile(r"(\w+)=(.*)", re.DOTALL)
_PEERS = re.compile(r"\s*\{([^{}]*)\}\s*$")
AT_ONCE = "@!"
SET = "set"
MAX_DEPTH = 8


class Peers(NamedTuple):
    """Selects nodes by number: those named, or all but those."""

    numbers: frozenset[int]
    excluded: bool

    def __contains__(self, number: object) -> bool:
        return (number in self.numbers) is not self.excluded


ALL = Peers(frozenset(), excluded=True)


class Line(NamedTuple):
    """One line of a scenario: a verb, its arguments, when it is done, and by which nodes."""

    at_s: float
    verb: str
    arguments: tuple[str, ...]
    named: dict[str, str]
    peers: Peers
    where: str  # file:line


class Scenario(NamedTuple):
    """Holds the lines of a scenario, in the order in which they are done."""

    modules: tuple[str, ...]
    lines: tuple[Line, ...]


def read_scenario(name: str, load: Callable[[str], str], variables: Mapping[str, str]) -> Scenario:
    """`load` gives the text of a file by its name, as it is written in `&include`; it raises OSError.

    Raises ScenarioError.
    """
    reader = _Reader(load, dict(variables))
    reader.read(name, f"{name}:0", 0)
    return Scenario(tuple(dict.fromkeys(reader.modules)), tuple(sorted(reader.lines, key=lambda line: line.at_s)))


class _Reader:
    def __init__(self, load: Callable[[str], str], variables: dict[str, str]) -> None:
        self._load = load
        self._variables = variables
        self.modules: list[str] = []
        self.lines: list[Line] = []

    def read(self, name: str, where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ScenarioError(f"{where}: includes go deeper than {MAX_DEPTH} files; does one include itself?")
        try:
            text = self._load(name)
        except OSError as error:
            raise ScenarioError(f"{where}: cannot read {name}: {error.strerror}") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self._read_line(line.strip(), f"{name}:{number}", depth)

    def _read_line(self, text: str, where: str, depth: int) -> None:
        text = self._expanded(text, where)
        if text.startswith("&"):
            self._direct(text, where, depth)
            return
        words, peers = _split_peers(text, where)
        match _words(words, where):
            case [time, verb, *rest] if time == AT_ONCE:
                self._set(verb, rest, where)
            case [time, verb, *rest]:
                named = [found for word in rest if (found := _NAMED.fullmatch(word))]
                arguments = tuple(word for word in rest if not _NAMED.fullmatch(word))
                by_name = {found[1]: found[2] for found in named}
                self.lines.append(Line(_seconds(time, where), verb, arguments, by_name, peers, where))
            case _:
                raise ScenarioError(f"{where}: {text!r} is not TIME VERB [ARGUMENT ...] [{{PEERS}}]")

    def _expanded(self, text: str, where: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in self._variables:
                known = ", ".join(sorted(self._variables)) or "none"
                raise ScenarioError(f"{where}: nothing says what ${found[1]} is; there are {known}")
            return self._variables[found[1]]

        return _VARIABLE.sub(value, text)

    def _direct(self, text: str, where: str, depth: int) -> None:
        found = _DIRECTIVE.fullmatch(text)
        if found is None or found[1] not in ("include", "module"):
            raise ScenarioError(f"{where}: {text!r} is neither &include FILE nor &module NAME")
        if found[1] == "include":
            self.read(found[2], where, depth + 1)
        else:
            self.modules.append(found[2])

    def _set(self, verb: str, rest: list[str], where: str) -> None:
        if verb != SET or len(rest) != 2:
            raise ScenarioError(f"{where}: at once, a scenario can only `{AT_ONCE} {SET} NAME VALUE`")
        self._variables[rest[0]] = rest[1]


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None


def _split_peers(text: str, where: str) -> tuple[str, Peers]:
    found = _PEERS.search(text)
    return (text[: found.start()], parse_peers(found[1], where)) if found else (text, ALL)


def parse_peers(text: str, where: str = "peers") -> Peers:
    """Parse the node numbers between the braces. Raises ScenarioError."""
    excluded = text.strip().startswith("!")
    numbers: set[int] = set()
    for part in filter(None, map(str.strip, text.strip().removeprefix("!").split(","))):
        first, dash, last = part.partition("-")
        try:
            numbers.update(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise ScenarioError(f"{where}: {{{text}}} names no nodes; write {{1,2}}, {{3-6}} or {{!1}}") from None
    return Peers(frozenset(numbers), excluded)


def _seconds(text: str, where: str) -> float:
    parts = text.removeprefix("@").split(":")
    try:
        *units, seconds = [*(int(part) for part in parts[:-1]), float(parts[-1])]
        if len(units) > 2 or min(*units, seconds, 0) < 0:
            raise ValueError
    except ValueError:
        raise ScenarioError(f"{where}: {text!r} is not a time; write @[H:]M:S") from None
    return float(sum(unit * 60**power for power, unit in enumerate(reversed(units), 1)) + seconds)


def peers_of_roles(roles: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Return number and role of each node: numbers go on from role to role."""
    number = 0
    for role, count in roles.items():
        for _ in range(count):
            number += 1
            yield number, role


def variables_of_roles(roles: Mapping[str, int]) -> dict[str, str]:
    """Return the variables that scenarios name roles by: $seeder is "1-4", and empty for a role that nobody has."""
    numbers: dict[str, list[int]] = {role: [] for role in roles}
    for number, role in peers_of_roles(roles):
        numbers[role].append(number)
    return {role: f"{found[0]}-{found[-1]}" if found else "" for role, found in numbers.items()}
