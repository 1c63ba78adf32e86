"""The system calls that Python's os module lacks, by libc. Each raises OSError."""

import ctypes
import os
import platform
import sys

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

IS_LINUX = sys.platform == "linux"
MACHINE = platform.machine()

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(ctypes.c_int(option), *words))


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)))


def drop_capabilities() -> None:
    """Give up all capabilities of this thread, which root has (capabilities(7))."""
    # struct __user_cap_header_struct, then two of __user_cap_data_struct: effective, permitted, inheritable
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(header, nothing))


def syscall(number: int, *arguments: int) -> int:
    """Call the kernel with numbers and addresses as arguments, and return what the call returns."""
    words = [ctypes.c_long(word) for word in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
