#!/bin/sh
# libtorrent 2.1.1 (the wheel of PyPI, Python 3.11 or newer): a torrent is removed while its tracker has yet to answer
# `stopped`.
#
# Expected: each tracker_announce_alert is followed by a tracker_reply_alert or a tracker_error_alert, as its reference says
# of announces, so that a program can tell when all trackers have heard of the end.
# Seen: for a torrent that is paused, both come. For one that is removed, the announce alone: the tracker is asked and
# answers, and no alert says so. Only the time that stop_tracker_timeout gives tells that nothing is on its way any longer.
# It matters to whoever drops a session: its destructor waits for such an announce, with Python's interpreter lock held.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install libtorrent==2.1.1
"$folder/venv/bin/python" - <<'PROGRAM'
import http.server
import sys
import tempfile
import threading
import time

import libtorrent as lt

heard = []


class Tracker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        stopped = "event=stopped" in self.path
        if stopped:
            time.sleep(0.5)
        body = b"d8:intervali1800e5:peers0:e"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        heard.append("stopped" if stopped else "started")

    def log_message(self, *arguments):
        pass


def alerts_after(end):
    """Return the kinds of alerts of the tracker that came in two seconds after a torrent ended in this way."""
    heard.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    off = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False)
    session = lt.session({"listen_interfaces": "127.0.0.1:0", "alert_mask": lt.alert.category_t.all_categories, **off})
    tracker = f"http://127.0.0.1:{server.server_address[1]}/announce"
    parameters = lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{'a1' * 20}&tr={tracker}")
    parameters.save_path = tempfile.gettempdir()
    handle = session.add_torrent(parameters)
    until = time.monotonic() + 10
    while "started" not in heard and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    session.pop_alerts()
    end(session, handle)
    seen, until = [], time.monotonic() + 2
    while time.monotonic() < until:
        seen += [type(alert).__name__ for alert in session.pop_alerts() if isinstance(alert, lt.tracker_alert)]
        time.sleep(0.02)
    server.shutdown()
    return seen


paused = alerts_after(lambda session, handle: handle.pause())
told_of_paused = heard[-1]
removed = alerts_after(lambda session, handle: session.remove_torrent(handle))
print("libtorrent", lt.__version__, "on Python", sys.version.split()[0])
print("paused: ", paused, "- the tracker has heard", told_of_paused)
print("removed:", removed, "- the tracker has heard", heard[-1])
assert paused == ["tracker_announce_alert", "tracker_reply_alert"], paused
assert removed == ["tracker_announce_alert"], removed
assert (told_of_paused, heard[-1]) == ("stopped", "stopped")
PROGRAM
