"""The arguments by which the executable is told to be a child, or the template of children. Imports nothing."""

CHILD = "--child"
TEMPLATE = "--template"

_of_a_host = {"tunnel_pool.child": CHILD, "tunnel_pool.child.template": TEMPLATE}


def use(child: str, template: str) -> None:
    """Have a frozen program's own executable started with these."""
    _of_a_host.update({"tunnel_pool.child": child, "tunnel_pool.child.template": template})


def of_a_host(module: str) -> str:
    """Return the argument that has a frozen program run this module."""
    return _of_a_host[module]


def module_for(argument: str) -> str | None:
    """Return the module that the argument asks for, None when it is none of ours."""
    known = {
        CHILD: "tunnel_pool.child",
        TEMPLATE: "tunnel_pool.child.template",
        **{name: module for module, name in _of_a_host.items()},
    }
    return known.get(argument)
