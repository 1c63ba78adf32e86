"""Names the media type of a file by the end of its name, alike on all machines: it reads no table of the system."""

import mimetypes
from pathlib import PurePosixPath

OTHER = "application/octet-stream"
# What Python's own table lacks, has since a later version, or calls otherwise than players do; on some systems .ts is
# a translation, and .m4v is unknown to browsers by its own name (video/x-m4v).
_MEDIA = {
    "audio/aac": ".aac",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a .m4b",
    "audio/mpeg": ".mp2 .mp3",
    "audio/ogg": ".oga .ogg .opus .spx",
    "audio/wav": ".wav",
    "audio/x-ape": ".ape",
    "audio/x-matroska": ".mka",
    "audio/x-ms-wma": ".wma",
    "audio/x-wavpack": ".wv",
    "video/3gpp": ".3gp .3gpp",
    "video/mp2t": ".m2t .m2ts .mts .ts",
    "video/mp4": ".m4v .mp4",
    "video/mpeg": ".m2v .mpeg .mpg .vob",
    "video/ogg": ".ogv",
    "video/quicktime": ".mov .qt",
    "video/webm": ".webm",
    "video/x-flv": ".flv",
    "video/x-matroska": ".mk3d .mkv",
    "video/x-ms-wmv": ".asf .wmv",
    "video/x-msvideo": ".avi .divx",
}
_IS_STRICT = True  # registered with IANA
_TYPES = {
    **mimetypes.MimeTypes(filenames=()).types_map[_IS_STRICT],
    **{end: kind for kind, ends in _MEDIA.items() for end in ends.split()},
}


def media_type(path: str) -> str:
    """Return the media type (RFC 6838) of a file of this name."""
    return _TYPES.get(PurePosixPath(path).suffix.lower(), OTHER)
