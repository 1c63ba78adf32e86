"""Reads the TOML file that says which code of a program belongs to which component."""

from pathlib import Path

import msgspec

from tunnel_pool.system.toml_file import Section, read_toml

OWN = Path(__file__).parent / "components.toml"


class Component(Section, frozen=True):
    """A part of the program. `code`: modules, or module:Class, with all below them; the longest name that fits decides.

    `outside`: the component it exchanges data with when the event loop calls it, or when it writes to a socket.
    `native_threads`: whether the threads that Python did not start are its own.
    """

    what: str = ""
    code: list[str] = msgspec.field(default_factory=list)
    outside: str = ""
    native_threads: bool = False


class Boundary(Section, frozen=True):
    """A cut that the program deploys; `apart` names the components in the other process.

    `stays`: components that have to stay for this cut, beside the program's own. `free`: edges that are sockets anyway.
    """

    what: str
    apart: list[str]
    stays: list[str] = msgspec.field(default_factory=list)
    free: list[list[str]] = msgspec.field(default_factory=list)


class Components(Section, frozen=True):
    """Says which code is whose; code of no component is its caller's. `world` is the event loop and all below it.

    `stays`: the component that has to stay. `messages`: classes whose instances are sent as they are, so that their
    bytes count; any other object counts as a number that names it.
    """

    stays: str
    components: dict[str, Component]
    world: list[str] = msgspec.field(default_factory=list)
    messages: list[str] = msgspec.field(default_factory=list)
    boundaries: dict[str, Boundary] = msgspec.field(default_factory=dict)


def _check(components: Components) -> None:
    known = set(components.components)
    if sum(one.native_threads for one in components.components.values()) > 1:
        raise ValueError("`native_threads` can be one component's only")
    for name in [components.stays, *(one.outside for one in components.components.values() if one.outside)]:
        if name not in known:
            raise ValueError(f"{name!r} is no component")
    for name, boundary in components.boundaries.items():
        named = {*boundary.apart, *boundary.stays, *(end for edge in boundary.free for end in edge)}
        if missing := named - known:
            raise ValueError(f"`boundaries.{name}` has {', '.join(sorted(missing))}, which are no components")


def read_components(path: Path) -> Components:
    """Raises UserError."""
    return read_toml(path, Components, _check)
