"""Takes what a process of ours writes on stdout and stderr into our log, line by line."""

import logging

MAX_LINE_BYTES = 4096

logger = logging.getLogger(__name__)


class ChildLog:
    """Logs what a child writes; `last_line` says why it ended, when nothing else does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self.last_line = "it said nothing"

    def received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
            if text:
                self.last_line = text
                level = logging.WARNING if text.startswith(("WARNING", "ERROR")) else logging.INFO
                logger.log(level, "%s: %s", self._name, text)

    def ended(self) -> None:
        """Take what is left as a last line, though it has no end."""
        if self._rest:
            self.received(b"\n")
