#!/bin/sh
# libtorrent 2.1.1 beside 2.0.15 (the wheels of PyPI, Python 3.11 or newer): a torrent has three trackers in three tiers,
# which all answer, and all are asked. One of them, by its number, is to be asked again.
#
# Expected, by libtorrent's reference of force_reannounce(seconds, tracker_idx, flags), whose last argument may be left out:
# force_reannounce(0, 2) asks the third tracker again, as force_reannounce(0, 2, 0) does.
# Seen: so it is in 2.0.15. In 2.1.1, two numbers are taken as (seconds, flags), of another function of that name: all
# trackers are asked again; with the number 1 even sooner than they allow, as 1 is ignore_min_interval.
# It matters to programs that ask one tracker again, for which private trackers count what all of them get.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.1.1 2.0.15; do
  export VERSION="$version"
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" --quiet --disable-pip-version-check install "libtorrent==$version"
  "$folder/$version/bin/python" - <<'PROGRAM'
import http.server
import os
import sys
import tempfile
import threading
import time

import libtorrent as lt

ALLOWS_AT_ONCE, ALLOWS_LATER = (b"d8:intervali1800e12:min intervali%de5:peers0:e" % least_s for least_s in (1, 900))
WAIT_S = 4


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # the session has ended


def asked_again(answer, *arguments):
    """Return which trackers were asked again."""
    counts = [0, 0, 0]

    def tracker(number):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                counts[number] += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    off = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False)
    every_tier = dict.fromkeys(("announce_to_all_trackers", "announce_to_all_tiers"), True)
    session = lt.session({"listen_interfaces": "127.0.0.1:0", **off, **every_tier})
    parameters = lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{'ab' * 20}")
    parameters.save_path = tempfile.gettempdir()
    parameters.trackers = [f"http://127.0.0.1:{tracker(number)}/announce" for number in range(3)]
    parameters.tracker_tiers = [0, 1, 2]
    handle = session.add_torrent(parameters)
    deadline_s = time.monotonic() + 30
    while not all(counts):
        assert time.monotonic() < deadline_s, counts
        time.sleep(0.05)
    time.sleep(1.5)
    before = list(counts)
    handle.force_reannounce(*arguments)
    time.sleep(WAIT_S)
    return [number for number in range(3) if counts[number] > before[number]]


seen = [
    asked_again(ALLOWS_AT_ONCE, 0, 2),
    asked_again(ALLOWS_AT_ONCE, 0, 2, 0),
    asked_again(ALLOWS_LATER, 0, 2),
    asked_again(ALLOWS_LATER, 0, 1),
]
print(lt.__version__, "asked again by (0, 2), (0, 2, 0), and where it is too soon, (0, 2), (0, 1):", seen)
expected = {"2.1.1": [[0, 1, 2], [2], [], [0, 1, 2]], "2.0.15": [[2], [2], [], []]}
sys.exit(seen != expected[os.environ["VERSION"]])
PROGRAM
done
