"""Ends a child with the process that started it, however that ends, and keeps nothing else of it in the child."""

import contextlib
import ctypes
import errno
import os
import signal
import sys
import threading
import time

from tunnel_pool.rpc.descriptors import ALL

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.5
EXIT_CODE_ORPHANED = 70


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill us when the parent dies, even while we are stopped; poll where it can't.

    Call it from the main thread. Ends the process when the parent is gone already.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_poll, args=(parent_pid,), name="lifeline", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(EXIT_CODE_ORPHANED)


def close_other_descriptors() -> None:
    """Close what a library of the main process left open over exec; only the streams are a child's."""
    try:
        open_ones = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(len(ALL), max(len(ALL), os.sysconf("SC_OPEN_MAX")))
        return
    for descriptor in open_ones:
        if descriptor not in ALL:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
                os.close(descriptor)


def adopt_orphans() -> None:
    """Be the parent of grandchildren whose parent has ended, so that we hear how they end. Linux; raises OSError."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "it needs Linux")
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans (PR_SET_CHILD_SUBREAPER)")


def _poll(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    os._exit(EXIT_CODE_ORPHANED)
