"""Which clients of qBittorrent's API are logged in, by their cookies. Pure."""

import secrets
from dataclasses import dataclass, field

from tunnel_pool.daemon.server.qbittorrent.deltas import Deltas

IDLE_S = 3600.0  # as qBittorrent's web_ui_session_timeout
MOST = 1000


@dataclass(slots=True)
class Login:
    used_s: float  # monotonic
    deltas: Deltas = field(default_factory=Deltas)  # what its client was last told by sync/maindata


class Logins:
    """Gives each client that has logged in an id for its cookie, and forgets those that are idle for IDLE_S."""

    def __init__(self) -> None:
        self._logins: dict[str, Login] = {}  # the one that was used last comes last

    def begin(self, now_s: float) -> str:
        """Return the id of a new login; of MOST, the one that is idle for longest ends."""
        self._forget(now_s)
        while len(self._logins) >= MOST:
            del self._logins[next(iter(self._logins))]
        name = secrets.token_urlsafe(32)
        self._logins[name] = Login(now_s)
        return name

    def find(self, name: str, now_s: float) -> Login | None:
        """Return a login that goes on, and note that it was used."""
        self._forget(now_s)
        login = self._logins.pop(name, None)
        if login is not None:
            login.used_s = now_s
            self._logins[name] = login
        return login

    def end(self, name: str) -> None:
        self._logins.pop(name, None)

    def end_all(self) -> None:
        self._logins.clear()

    def _forget(self, now_s: float) -> None:
        while self._logins and next(iter(self._logins.values())).used_s <= now_s - IDLE_S:
            del self._logins[next(iter(self._logins))]
