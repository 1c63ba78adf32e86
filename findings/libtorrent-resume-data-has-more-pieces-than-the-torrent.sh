#!/bin/sh
# libtorrent 2.1.1 and 2.0.11 (the wheels of PyPI, Python 3.11): resume data of a torrent of eleven pieces, all there, is written
# and read again; 2.0.11 also reads what 2.1.1 has written.
#
# Expected: have_pieces has eleven bits after as before.
# Seen: so it is with 2.0.11 alone, which writes a byte for each piece. 2.1.1 writes file-version 2, in which a byte holds eight
# pieces and nothing says how many there are: read_resume_data of both versions returns sixteen, of which the last five are not
# there. libtorrent itself leaves them out when the torrent is added.
# It matters to programs that look into resume data of others, or their own: by all(have_pieces) a whole torrent is not whole,
# by its share it is at 69 %.
#
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.1.1 2.0.11; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" --quiet --disable-pip-version-check install "libtorrent==$version"
  "$folder/$version/bin/python" -W ignore - "$folder" <<'PROGRAM'
import sys
from pathlib import Path

import libtorrent as lt

PIECES = 11
kept = Path(sys.argv[1]) / "kept"
files = lt.file_storage()
files.add_file("data", PIECES * 16384)
creator = lt.create_torrent(files, 16384, lt.create_torrent.v1_only)
for piece in range(PIECES):
    creator.set_hash(piece, b"x" * 20)
torrent = lt.add_torrent_params()
torrent.ti = lt.torrent_info(lt.bdecode(lt.bencode(creator.generate())))
torrent.have_pieces = [True] * PIECES
padded = [True] * PIECES + [False] * 5
written = lt.write_resume_data(torrent)
own = [bool(each) for each in lt.read_resume_data(lt.bencode(written)).have_pieces]
print(lt.__version__, "version", written[b"file-version"], "own:", own.count(True), "of", len(own))
if lt.__version__.startswith("2.1."):
    kept.write_bytes(lt.bencode(written))
    sys.exit(own != padded)
others = [bool(each) for each in lt.read_resume_data(kept.read_bytes()).have_pieces]
print(lt.__version__, "2.1's:", others.count(True), "of", len(others))
sys.exit(own != [True] * PIECES or others != padded)
PROGRAM
done
