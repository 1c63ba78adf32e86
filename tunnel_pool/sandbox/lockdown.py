"""A network without a way out, for the threads of anonymous libtorrent sessions.

A network namespace that has nothing but a loopback device of its own, and in it one thread of this process:
what is opened and started there stays there, whatever it tries. Sockets keep the namespace that they were
made in, so that the SOCKS5 server's, which are made there too, are served from the rest of the process.

Names would still leave by Unix sockets to a resolver of the system (nscd, systemd-resolved), which are in no
network namespace: a seccomp filter leaves the thread nothing but sockets of the internet, and no way back.
"""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tunnel_pool.sandbox import connections, seccomp
from tunnel_pool.sandbox.kernel import CLONE_NEWNET, CLONE_NEWUSER, IS_LINUX, unshare

_SIOCSIFFLAGS = 0x8914  # linux/sockios.h
_IFF_UP_RUNNING = 0x41
# libtorrent looks at this machine's addresses and routes by netlink, which carries nothing.
_FAMILIES = seccomp.INTERNET | ({socket.AF_NETLINK} if IS_LINUX else set())

T = TypeVar("T")


class LockdownError(Exception):
    """Says which part of a lockdown the kernel does not give."""


def prepare() -> None:
    """Make this process root of a user namespace of its own, which may make network namespaces.

    Call this before any thread is started. Files, other processes and the network are as before, and so are the
    rights of programs that are started. Do nothing as root, on other systems than Linux, or if the kernel refuses.
    """
    if not IS_LINUX or os.geteuid() == 0:
        return
    connections.keep_open()
    user, group = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError):
        unshare(CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


class Lockdown:
    """Holds a network namespace, and a thread in it, until `close`."""

    def __init__(self) -> None:
        """Raises LockdownError."""
        self._thread = ThreadPoolExecutor(1, "lockdown")
        try:
            self._thread.submit(_enter).result()
        except OSError as error:
            self._thread.shutdown()
            raise LockdownError(error.strerror) from None

    def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns, called in the thread: its sockets and threads are in the namespace."""
        return self._thread.submit(function).result()

    def close(self) -> None:
        """End the thread; what was made there keeps the namespace for as long as it is there."""
        self._thread.shutdown()


def _enter() -> None:
    if not IS_LINUX or not seccomp.is_known_machine():
        raise OSError(0, "tunnel-pool knows no way on this system")
    try:
        unshare(CLONE_NEWNET)
    except OSError as error:
        raise OSError(error.errno, f"no network namespace: {error.strerror}") from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))
    seccomp.confine(_FAMILIES)
