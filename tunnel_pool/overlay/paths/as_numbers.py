"""The autonomous system of an address, by a database in the MaxMind DB format (https://maxmind.github.io/MaxMind-DB/)."""

import mmap
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from tunnel_pool.overlay.ground.networks import AsNumberOf

# By who makes the database: GeoLite2-ASN and DB-IP; IPinfo, whose numbers have "AS" before them.
FIELDS = ("autonomous_system_number", "asn")


class AsDatabaseError(Exception):
    """Says why the database can't be used."""


class _Mapped:
    """Stands for a file in maxminddb: it is mapped instead of read, so that processes share its memory."""

    def __init__(self, fd: int) -> None:
        self.name = f"descriptor {fd}"
        self._memory = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def read(self) -> mmap.mmap:
        return self._memory


def open_as_numbers(fd: int) -> AsNumberOf:
    """Return the look-up in a database, which stays mapped when the descriptor is closed. Raises AsDatabaseError."""
    from maxminddb import MODE_FD, InvalidDatabaseError
    from maxminddb.reader import Reader

    try:
        reader = Reader(cast(Any, _Mapped(fd)), MODE_FD)
        # The tree is of the format, the records are whatever their maker put there.
        sample = next((record for _, record in reader if isinstance(record, Mapping)), {})
    except (OSError, ValueError, InvalidDatabaseError) as error:
        raise AsDatabaseError(f"it is no database in the MaxMind DB format: {error}") from None
    if not any(field in sample for field in FIELDS):
        raise AsDatabaseError(f"its records have none of {' and '.join(FIELDS)}: is it one of AS numbers?")
    return partial(_as_number, reader)


def _as_number(reader: Any, host: str) -> int | None:
    try:
        record = reader.get(host)
    except ValueError:  # the database is damaged, or knows IPv4 alone
        return None
    return as_number_in(record) if isinstance(record, Mapping) else None


def as_number_in(record: Mapping[str, Any]) -> int | None:
    """Return the AS number that a record of a database has; None where it has none."""
    found = next((record[field] for field in FIELDS if field in record), None)
    digits = str(found).removeprefix("AS")
    return int(digits) if digits.isascii() and digits.isdigit() else None
