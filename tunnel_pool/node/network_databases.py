"""The networks of autonomous systems and countries, by databases in the MaxMind DB format, for an exit's rules.

Databases are GeoLite2-ASN and -Country (MaxMind), those of DB-IP of the same kinds, and IPinfo's, which have both.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from pathlib import Path

from tunnel_pool.overlay.ground.exit_rules import Network
from tunnel_pool.overlay.paths.as_numbers import as_number_in
from tunnel_pool.system.errors import UserError

_ENTRY = re.compile(r"AS(\d{1,10})|country:([A-Z]{2})")


def is_named(entry: str) -> bool:
    """Return whether an entry of a list of networks names a system (`AS64500`) or a country (`country:NL`)."""
    return _ENTRY.fullmatch(entry) is not None


def networks_named(entries: Iterable[str], databases: Iterable[Path]) -> dict[str, list[Network]]:
    """Return the networks of each entry that `is_named` holds for. Raises UserError where no database knows one.

    Each database is read from the beginning to the end, which takes seconds.
    """
    wanted = set(entries)
    if not wanted:
        return {}
    found: dict[str, list[Network]] = defaultdict(list)
    for path in databases:
        _read(path, wanted, found)
    for entry in sorted(wanted - found.keys()):
        raise UserError(f"no database knows {entry!r}: name one that does by `databases` of [exit]")
    return found


def _read(path: Path, wanted: set[str], found: dict[str, list[Network]]) -> None:
    from maxminddb import InvalidDatabaseError, open_database  # of use to few

    try:
        with open_database(path) as database:
            for network, record in database:
                if isinstance(record, Mapping):
                    for entry in _entries_in(record) & wanted:
                        found[entry].append(ip_network(str(network)))
    except (OSError, ValueError, InvalidDatabaseError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is none in the MaxMind DB format"
        raise UserError(f"the database {path} can't be read: {why}") from None


def _entries_in(record: Mapping[str, object]) -> set[str]:
    country = record.get("country")
    code = country.get("iso_code") if isinstance(country, Mapping) else record.get("country_code") or country
    number = as_number_in(record)
    return {f"country:{code}"} | ({f"AS{number}"} if number is not None else set())
