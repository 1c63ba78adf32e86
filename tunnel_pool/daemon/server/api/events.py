"""Server-sent events (html.spec.whatwg.org, 9.2): once a second what is so, and what has happened since."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from tunnel_pool.daemon.server.api.happenings import happenings
from tunnel_pool.daemon.server.api.watcher import Watcher

MAX_BEHIND = 30  # chunks that a listener may leave unread, before it is cut off

Chunks = asyncio.Queue[bytes | None]


class Events:
    """Sends events to listeners; call `tick` once a second. None in a listener's queue says that it is over."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._seen = watcher.seen()
        self._sent: dict[str, bytes] = {}
        self._listeners: dict[Chunks, Callable[[], None]] = {}

    @contextmanager
    def heard(self, cut_off: Callable[[], None]) -> Iterator[Chunks]:
        """Yield a queue of events: all that there is, then changes. `cut_off` is called when nobody reads it."""
        queue: Chunks = asyncio.Queue()
        if not self._listeners:
            self._sent, self._seen = self._now(), self._watcher.seen()
        queue.put_nowait(self._state() + _torrents(list(self._sent.values()), []))
        self._listeners[queue] = cut_off
        try:
            yield queue
        finally:
            self._listeners.pop(queue, None)

    def tick(self) -> None:
        self._watcher.look()
        if not self._listeners:
            return
        before, self._sent = self._sent, self._now()
        seen_before, self._seen = self._seen, self._watcher.seen()
        happened = happenings(seen_before, self._seen)
        changed = [row for name, row in self._sent.items() if before.get(name) is not row]
        removed = [name for name in before if name not in self._sent]
        chunk = self._state() + b"".join(_event("happening", msgspec.json.encode(each)) for each in happened)
        if changed or removed:
            chunk += _torrents(changed, removed)
        for queue, cut_off in list(self._listeners.items()):
            if queue.qsize() < MAX_BEHIND:
                queue.put_nowait(chunk)
            else:
                del self._listeners[queue]
                cut_off()

    async def close(self, _: object = None) -> None:
        """Tell everybody that it is over."""
        for queue in self._listeners:
            queue.put_nowait(None)

    def _now(self) -> dict[str, bytes]:
        torrents = self._watcher.library.torrents.values()
        return dict(zip((each.hash_string for each in torrents), self._watcher.rows.of(torrents), strict=True))

    def _state(self) -> bytes:
        return _event("state", msgspec.json.encode(self._watcher.state()))


def _torrents(changed: list[bytes], removed: list[str]) -> bytes:
    rows = [msgspec.Raw(row) for row in changed]
    return _event("torrents", msgspec.json.encode({"changed": rows, "removed": removed}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
