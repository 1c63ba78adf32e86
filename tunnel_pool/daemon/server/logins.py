"""Knows by their cookies which clients of qBittorrent's API are logged in. Pure."""

import secrets

IDLE_S = 3600.0  # as qBittorrent's web_ui_session_timeout
MOST = 1000


class Logins:
    """Gives each client that has logged in an id for its cookie, and forgets those that are idle for IDLE_S."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}  # monotonic, by id; the one that was used last comes last

    def begin(self, now_s: float) -> str:
        """Return the id of a new login; of MOST, the one that is idle for longest ends."""
        self._forget(now_s)
        while len(self._used_s) >= MOST:
            del self._used_s[next(iter(self._used_s))]
        name = secrets.token_urlsafe(32)
        self._used_s[name] = now_s
        return name

    def goes_on(self, name: str, now_s: float) -> bool:
        """Return whether there is such a login, and note that it was used."""
        self._forget(now_s)
        if self._used_s.pop(name, None) is None:
            return False
        self._used_s[name] = now_s
        return True

    def end(self, name: str) -> None:
        self._used_s.pop(name, None)

    def end_all(self) -> None:
        self._used_s.clear()

    def _forget(self, now_s: float) -> None:
        while self._used_s and next(iter(self._used_s.values())) <= now_s - IDLE_S:
            del self._used_s[next(iter(self._used_s))]
