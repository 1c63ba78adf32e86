"""Tells systemd what a unit of Type=notify wants to hear (sd_notify(3))."""

import contextlib
import os
import socket
import time


def tell(state: str) -> None:
    """Tell the process that started us, if it is systemd: `READY=1`, `WATCHDOG=1`, `STOPPING=1`, `RELOADING=1`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = "\0" + address[1:] if address[0] == "@" else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.sendto(state.encode(), name)


def tell_reloading() -> None:
    """Tell systemd that a reload begins, and since when; READY=1 is to follow (Type=notify-reload)."""
    tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog_interval_s() -> float | None:
    """Return how often to say that we live, half of what systemd waits for; None when it does not."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    return int(usec) / 2e6 if usec.isdigit() and int(usec) and pid == str(os.getpid()) else None
