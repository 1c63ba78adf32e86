#!/bin/sh
# libtorrent 2.1.1 and 2.0.15 (the wheels of PyPI, Python 3.11 or newer): a torrent knows one peer, at a port of 127.0.0.1
# where nobody listens, and a session whose max_failcount is 100.
#
# Expected, by the reference of the settings: the peer is tried up to a hundred times, each time after a wait that grows by
# min_reconnect_time (here 1 s), and a peer that is named again, by any source but the DHT, gets another try.
# Seen: three tries in six seconds, with 1 as with 100, whether the setting is there from the start or applied before the
# torrent knows its first peer; then the peer is no candidate any more. The setting holds for those torrents alone that know
# a peer when it changes. Named again by a tracker the peer is tried once more; by connect_peer without a source, by PEX or by
# resume data it is not.
# It matters to programs that set it so that peers behind a network that comes and goes are tried for long, and to those that
# name a peer again by connect_peer.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.1.1 2.0.15; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" --quiet --disable-pip-version-check install "libtorrent==$version"
  "$folder/$version/bin/python" - <<'PROGRAM'
import socket
import sys
import time

import libtorrent as lt

QUIET_S = 9  # the fourth try would come four seconds after the third, at a minimum of one for each failure
MANY = 5  # tries are enough to be sure
OFF = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp", "enable_outgoing_utp"), False)
MASK = int(lt.alert.category_t.connect_notification | lt.alert.category_t.peer_notification)


class Client:
    """A session with one torrent, and a peer that refuses."""

    def __init__(self, most, applied_later=False):
        self._reserved = socket.socket()
        self._reserved.bind(("127.0.0.1", 0))  # and it does not listen
        self.peer = self._reserved.getsockname()
        known = {} if applied_later else {"max_failcount": most}
        settings = {"listen_interfaces": "127.0.0.1:0", "min_reconnect_time": 1, "alert_mask": MASK, **OFF, **known}
        self._session = lt.session(settings)
        wanted = lt.add_torrent_params()
        wanted.info_hashes, wanted.save_path = lt.info_hash_t(lt.sha1_hash(b"x" * 20)), "/tmp"
        wanted.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
        self.handle = self._session.add_torrent(wanted)
        if applied_later:
            self.apply(most)
            time.sleep(1)

    def apply(self, most):
        self._session.apply_settings({"max_failcount": most})

    def tries(self):
        """Return how often the peer is tried until it is left alone."""
        count, last_s = 0, time.monotonic()
        while time.monotonic() - last_s < QUIET_S and count < MANY:
            for alert in self._session.pop_alerts():
                if isinstance(alert, lt.peer_connect_alert):
                    count, last_s = count + 1, time.monotonic()
            time.sleep(0.1)
        return count


seen = {}
for what, client in {"1": Client(1), "100": Client(100), "100 later": Client(100, applied_later=True)}.items():
    client.handle.connect_peer(client.peer)
    seen[what] = client.tries()
for name in ("tracker", "pex", "resume_data"):
    client.handle.connect_peer(client.peer, int(getattr(lt.peer_info, name)))
    seen[f"again by {name}"] = client.tries()
client.handle.connect_peer(client.peer)
seen["again"] = client.tries()
known = Client(3)
known.handle.connect_peer(known.peer)
known.apply(100)
seen["100 once a peer is known"] = known.tries()
print(lt.__version__, seen)
as_described = {
    "1": 3, "100": 3, "100 later": 3, "again by tracker": 1, "again by pex": 0, "again by resume_data": 0, "again": 0,
    "100 once a peer is known": MANY,
}
sys.exit(seen != as_described)
PROGRAM
done
