"""Says when a tracker that does not know a new torrent yet is asked again. Pure.

Private trackers learn of an uploaded torrent some minutes after their feed has named it, refuse it until then, and say
with that to come back in half an hour, by when others have it. Words are those of UNIT3D, Gazelle, TorrentPier, XBT and
opentracker; programs such as autobrr wait for the same.
"""

import re

NEW_FOR_S = 15 * 60.0
AGAIN_AT_S = (60.0, 180.0, 420.0, 840.0)  # since the torrent was added
LEAST_S = 30.0

_UNKNOWN = re.compile(
    r"unregistered|not (yet )?(been )?(registered|found|indexed|known)|(not|n't) exist|unknown (torrent|info)|"
    r"not in (the|our) database|not authorized for use with this tracker",
    re.IGNORECASE,
)


def asked_again_in_s(said: str, age_s: float) -> float | None:
    """Return in how many seconds a tracker that has refused a torrent with these words is asked again.

    None where it is libtorrent's to say, as of a torrent that has been there for longer than NEW_FOR_S.
    """
    if not 0 <= age_s < NEW_FOR_S or not _UNKNOWN.search(said):
        return None
    return next((at_s - age_s for at_s in AGAIN_AT_S if at_s >= age_s + LEAST_S), None)
