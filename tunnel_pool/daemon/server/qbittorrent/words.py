"""A call of qBittorrent's API: its parameters, which are texts as in a query or a form, and its answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from tunnel_pool.daemon.errors import ConflictError, RequestError

MOST = 2**53


class FileAnswer(NamedTuple):
    content: bytes
    content_type: str
    name: str


@dataclass(frozen=True, slots=True)
class Words:
    """Holds the parameters of a call; what reads one raises RequestError if it is missing or wrong."""

    given: Mapping[str, str]
    files: Mapping[str, bytes]  # torrent files, by their names
    login: str = ""  # the id in the client's cookie, if it is logged in by it

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def text(self, name: str, otherwise: str | None = None) -> str:
        value = self.given.get(name, otherwise)
        if value is None:
            raise RequestError(f"Missing required parameters: {name}")
        return value

    def flag(self, name: str) -> bool | None:
        """Return true or false, None where neither is given."""
        value = self.given.get(name, "").strip().lower()
        return True if value in ("true", "1") else False if value in ("false", "0") else None

    def number(self, name: str, otherwise: int | None = None) -> int:
        value = self.text(name, None if otherwise is None else str(otherwise)).strip()
        try:
            number = int(float(value)) if value else otherwise
        except (ValueError, OverflowError):
            number = None
        if number is None or abs(number) > MOST:
            raise RequestError(f"{name} must be a whole number")
        return number

    def fraction(self, name: str, otherwise: float | None = None) -> float:
        value = self.text(name, None if otherwise is None else str(otherwise)).strip()
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not abs(number) <= MOST:
            raise RequestError(f"{name} must be a number")
        return number

    def several(self, name: str, separator: str = "|") -> list[str]:
        """Return the parts of a text that are not empty, without blanks around them."""
        return [part for each in self.text(name).split(separator) if (part := each.strip())]

    def places(self, name: str, count: int) -> list[int]:
        """Return places in a list of so many. Raises ConflictError, too."""
        texts = self.several(name)
        if not all(text.isascii() and text.isdigit() for text in texts):
            raise RequestError(f"{name} must be whole numbers")
        if any(len(text) > 9 or int(text) >= count for text in texts):
            raise ConflictError(f"{name}: there is no such file")
        return list(map(int, texts))

    def urls(self, name: str) -> list[str]:
        """Return URLs, each of which is percent-encoded."""
        return [unquote(url) for url in self.several(name)]


# The answer becomes JSON, but for texts and files; None is an empty text.
Call = Callable[[Words], Awaitable[object]]
