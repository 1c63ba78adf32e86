#!/bin/sh
# libtorrent 2.1.1 (the wheel of PyPI, Python 3.11 or newer): a torrent has two files whose names differ in case alone, and
# a program empties add_torrent_params.renamed_files, where libtorrent has put a number into the name of the second.
#
# Expected: the files are then those of the torrent, `A.txt` and `a.txt`, as the status and the resume data say.
# Seen: both say so, and libtorrent reads and writes `A.txt` and `a.1.txt`: the number stays with the torrent's metadata.
# Only a rename that is written out ({1: "x/a.txt"}) has it use the torrent's own name.
# It matters to whoever takes renames of another program's state over in place of libtorrent's: files that are whole are not
# found, and a program that looks for a file where the status says so looks at another one.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install libtorrent==2.1.1
"$folder/venv/bin/python" - <<'PROGRAM'
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import libtorrent as lt

CONTENTS = [os.urandom(20_000), os.urandom(20_000)]
WHOLE = b"".join(CONTENTS)
INFO = {
    b"name": b"x",
    b"piece length": 16384,
    b"pieces": b"".join(hashlib.sha1(WHOLE[at : at + 16384]).digest() for at in range(0, len(WHOLE), 16384)),
    b"files": [{b"length": 20_000, b"path": [name]} for name in (b"A.txt", b"a.txt")],
}


def found(second, renames):
    """Return how many bytes are found, and what the status calls the second file, which is there by this name."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x").mkdir()
        for name, content in zip(("A.txt", second), CONTENTS):
            (Path(folder) / "x" / name).write_bytes(content)
        off = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False)
        session = lt.session({"listen_interfaces": "127.0.0.1:0", **off})
        parameters = lt.load_torrent_buffer(lt.bencode({b"info": INFO}))
        numbered = dict(parameters.renamed_files)
        parameters.save_path = folder
        if renames is not None:
            parameters.renamed_files = renames
        handle = session.add_torrent(parameters)
        checking = lt.torrent_status.checking_files
        until = time.monotonic() + 10
        while time.monotonic() < until and handle.status().state in (checking, lt.torrent_status.checking_resume_data):
            time.sleep(0.05)
        time.sleep(0.5)
        status = handle.status()
        return numbered, status.total_done, status.renamed_files.file_path(parameters.ti.layout(), 1)


print("libtorrent", lt.__version__, "on Python", sys.version.split()[0])
as_given, emptied, emptied_numbered, named = (
    found("a.1.txt", None), found("a.txt", {}), found("a.1.txt", {}), found("a.txt", {1: "x/a.txt"})
)
print("as given, the file is a.1.txt:       ", as_given)
print("emptied, the file is a.txt:          ", emptied)
print("emptied, the file is a.1.txt:        ", emptied_numbered)
print("written out, the file is a.txt:      ", named)
assert as_given == ({1: "x/a.1.txt"}, 40_000, "x/a.1.txt"), as_given
assert emptied[1:] == (16_384, "x/a.txt"), emptied
assert emptied_numbered[1:] == (40_000, "x/a.txt"), emptied_numbered
assert named[1:] == (40_000, "x/a.txt"), named
PROGRAM
