"""The arguments by which the executable is told to be a child, the template of children, or a reader of feeds.

Imports nothing.
"""

CHILD = "--child"
TEMPLATE = "--template"
READ_FEED = "--read-feed"

OWN = {
    "tunnel_pool.child": CHILD,
    "tunnel_pool.child.template": TEMPLATE,
    "tunnel_pool.daemon.feeds.reader": READ_FEED,
}
_of_a_host = dict(OWN)


def use(child: str, template: str) -> None:
    """Start a frozen program's own executable with these."""
    _of_a_host.update({"tunnel_pool.child": child, "tunnel_pool.child.template": template})


def of_a_host(module: str) -> str:
    """Return the argument that has a frozen program run this module."""
    return _of_a_host[module]


def own_module_for(argument: str) -> str | None:
    """Return the module that the argument of `python -m tunnel_pool` asks for, None when it is none of ours."""
    return _module_for(argument, OWN)


def hosts_module_for(argument: str) -> str | None:
    """Return the module that the argument of a program that embeds the pool asks for, None when it is none of ours."""
    return _module_for(argument, _of_a_host)


def _module_for(argument: str, switches: dict[str, str]) -> str | None:
    return next((module for module, switch in switches.items() if switch == argument), None)
