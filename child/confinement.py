"""Confinement of a child, before it reads its first byte from the network: it parses what anybody sends.

The child gives up root's capabilities, gains no rights from programs, and starts none. It writes no core dump and
allows no debugger of the same user, as both would show its keys. It only reads the files that Python and name look-ups
need. It opens only internet, netlink and (for name look-ups) Unix sockets. Where the kernel lacks a part (Landlock
before Linux 5.13), that part is left out.
"""

import contextlib
import resource
import socket
import sys
from pathlib import Path

from tunnel_pool.sandbox import landlock, seccomp
from tunnel_pool.sandbox.kernel import IS_LINUX, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, drop_capabilities, prctl

_SYSTEM_PATHS = (
    "/usr", "/lib", "/lib64", "/etc", "/proc", "/sys/class/net", "/sys/devices/system/cpu", "/dev/urandom",
    "/run/systemd/resolve", "/run/resolvconf", "/run/nscd", "/var/run/nscd",
)  # fmt: skip
_WRITABLE = ("/dev/null",)


def confine_process() -> list[str]:
    """Confine this process, before it starts a thread; returns which parts the kernel does not have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not IS_LINUX:
        return ["all but core dumps"]
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    prctl(PR_SET_DUMPABLE, 0)
    missing = []
    own = {sys.prefix, sys.base_prefix, getattr(sys, "_MEIPASS", ""), *sys.path}
    readable = [Path(path) for path in (*_SYSTEM_PATHS, *own) if path and Path(path) != Path("/")]
    try:
        landlock.confine(readable, [Path(path) for path in _WRITABLE])
    except OSError as error:
        missing.append(f"Landlock ({error.strerror})")
    try:
        # Unix sockets: a resolver of the system may be behind one.
        seccomp.confine({*seccomp.INTERNET, socket.AF_NETLINK, socket.AF_UNIX})
    except OSError as error:
        missing.append(f"seccomp ({error.strerror})")
    return missing


def give_up_names() -> None:
    """Keep threads that are started later from the system's resolver; a child that is no exit looks up no names."""
    if IS_LINUX:
        with contextlib.suppress(OSError):
            seccomp.confine({*seccomp.INTERNET, socket.AF_NETLINK})
