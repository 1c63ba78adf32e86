#!/bin/sh
# libtorrent 2.1.1 and 2.0.15 (the wheels of PyPI, Python 3.11 or newer): a torrent has four trackers that all answer, two in
# its first tier and two in its second.
#
# Expected, by libtorrent's reference: with announce_to_all_tiers, one tracker of each tier is asked; with
# announce_to_all_trackers, both trackers of the first tier.
# Seen: each setting does what the reference says of the other. With both, all four are asked; with neither, one.
# It matters to programs that set announce_to_all_tiers alone, so as to ask every tracker of a public list, which has a tier
# for each, and no two mirrors of one tracker: they find the peers of the first tracker, and no others.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.1.1 2.0.15; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" --quiet --disable-pip-version-check install "libtorrent==$version"
  "$folder/$version/bin/python" - <<'PROGRAM'
import http.server
import sys
import tempfile
import threading
import time

import libtorrent as lt

ANSWER = b"d8:intervali1800e5:peers0:e"
TIERS = [0, 0, 1, 1]
WAIT_S = 5


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # the session has ended


def asked(*settings):
    """Return which trackers were asked."""
    seen = set()

    def tracker(number):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                seen.add(number)
                self.send_response(200)
                self.send_header("Content-Length", str(len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    off = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False)
    session = lt.session({"listen_interfaces": "127.0.0.1:0", **off, **dict.fromkeys(settings, True)})
    parameters = lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{'ab' * 20}")
    parameters.save_path = tempfile.gettempdir()
    parameters.trackers = [f"http://127.0.0.1:{tracker(number)}/announce" for number in range(len(TIERS))]
    parameters.tracker_tiers = TIERS
    parameters.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    session.add_torrent(parameters)
    time.sleep(WAIT_S)
    return [TIERS[number] for number in sorted(seen)]


print("libtorrent", lt.__version__, "on Python", sys.version.split()[0])
neither = asked()
tiers, trackers = asked("announce_to_all_tiers"), asked("announce_to_all_trackers")
both = asked("announce_to_all_tiers", "announce_to_all_trackers")
print("the tiers of the trackers that were asked")
print("neither:                 ", neither)
print("announce_to_all_tiers:   ", tiers)
print("announce_to_all_trackers:", trackers)
print("both:                    ", both)
assert neither == [0], neither
assert tiers == [0, 0], tiers
assert trackers == [0, 1], trackers
assert both == TIERS, both
PROGRAM
done
