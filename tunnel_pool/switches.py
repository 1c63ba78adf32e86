"""The arguments by which the executable is told to be a child, or the template of children. Imports nothing."""

CHILD = "--child"
TEMPLATE = "--template"

_of_a_host = {"child": CHILD, "child.template": TEMPLATE}


def use(child: str, template: str) -> None:
    """Have a frozen program's own executable started with these."""
    _of_a_host.update({"child": child, "child.template": template})


def of_a_host(module: str) -> str:
    """Return the argument that has a frozen program run this module."""
    return _of_a_host[module]


def module_for(argument: str) -> str | None:
    """Return the module that the argument asks for, None when it is none of ours."""
    known = {CHILD: "child", TEMPLATE: "child.template", **{name: module for module, name in _of_a_host.items()}}
    return known.get(argument)
