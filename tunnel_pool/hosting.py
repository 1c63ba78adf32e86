"""The door for programs that embed the pool, as Tribler does.

Children are this same executable again. A program that runs in a Python of its own need do nothing: its children are
`python -m tunnel_pool --child`. A frozen one (PyInstaller and the like) has only itself to start, with an argument that
it must not take for one of its own:

    from tunnel_pool import hosting

    hosting.use_switches("--tunnel-child", "--tunnel-template")
    hosting.become_child_if_asked()  # before anything else of the program is imported, or any argument is parsed
"""

import importlib.util
import os
import sys

from tunnel_pool.pool import switches

NEEDED = ("google.protobuf", "ipv8", "psutil")


def use_switches(child: str, template: str) -> None:
    """Start a frozen program's children with these arguments instead of --child and --template."""
    switches.use(child, template)


def become_child_if_asked() -> None:
    """Be a child of a pool, and end with it, if that is what this process was started for."""
    if module := switches.hosts_module_for("".join(sys.argv[1:2])):
        # Only a child of ours gets here: what is imported below is small, and knows nothing of the main process.
        from tunnel_pool.__main__ import be

        be(module)
        sys.exit(0)


def why_no_pool() -> str | None:
    """Return why a pool can't run in this process, None when it can."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"it needs Linux 5.3 or newer ({error.strerror})"
    missing = [name for name in NEEDED if not _is_there(name)]
    return f"{', '.join(missing)} can't be imported" if missing else None


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
