"""Bandwidth groups, as group-get shows them and group-set changes them (Transmission's docs/rpc-spec.md 4.8)."""

import msgspec

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.groups import Group
from tunnel_pool.daemon.storage.settings import Settings

MAX_NAME = 255
MOST = 1000


def shown(settings: Settings, names: object) -> list[dict[str, object]]:
    """Return these groups, all without names. Raises RequestError."""
    wanted = [names] if isinstance(names, str) else names
    if wanted is not None and not (isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)):
        raise RequestError("invalid argument: group: it is a name, or a list of names")
    return [
        {"name": name, **msgspec.to_builtins(group)}
        for name, group in sorted(settings.groups.items())
        if wanted is None or name in wanted
    ]


def changed(settings: Settings, arguments: dict[str, object]) -> Settings:
    """Return the settings with a group as the arguments say; one that is new is made.

    Raises RequestError and msgspec.ValidationError.
    """
    name = arguments.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise RequestError("invalid argument: name: a group has a name")
    before = settings.groups.get(name, Group())
    if arguments.get("honors_session_limits", True) is not True:
        raise RequestError("invalid argument: honors_session_limits: the limits of all torrents hold for groups, too")
    given = {key: value for key, value in arguments.items() if key in Group.__struct_fields__}
    group = msgspec.convert({**msgspec.to_builtins(before), **given}, Group, strict=False)
    groups = {**settings.groups, name: group}
    if len(groups) > MOST:
        raise RequestError(f"invalid argument: {MOST} groups are the most")
    return msgspec.structs.replace(settings, groups=groups)
