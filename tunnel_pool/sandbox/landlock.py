"""Rules for files and signals (landlock(7)), for a thread and those that it starts."""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from tunnel_pool.sandbox.kernel import PR_SET_NO_NEW_PRIVS, prctl, syscall

# linux/landlock.h; the numbers are the same on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_ALL_FILE_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPES_SINCE_ABI = 6
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """Return the version that the kernel has, 0 when it has none or has it switched off."""
    try:
        return syscall(_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def confine(readable: Iterable[Path], writable: Iterable[Path] = ()) -> None:
    """Keep this thread to reading these files and folders, and writing to those, from now on.

    With ABI 6, it also signals no process and reaches no abstract Unix socket outside. Paths that are not
    there are passed over. Raises OSError.
    """
    version = abi()
    if not version:
        raise OSError(95, "the kernel has no Landlock")
    handled = _ALL_FILE_RIGHTS_OF_ABI[min(version, max(_ALL_FILE_RIGHTS_OF_ABI))]
    scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if version >= _SCOPES_SINCE_ABI else 0
    # struct landlock_ruleset_attr: rights of files, of the network, scopes; older kernels know its beginning.
    attributes = struct.pack("=QQQ", handled, 0, scopes)[: 24 if scopes else 8]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = syscall(_CREATE_RULESET, ctypes.addressof(buffer), len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR | _WRITE_FILE)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= ~_READ_DIR
        # struct landlock_path_beneath_attr, packed
        buffer = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.addressof(buffer), 0)
    finally:
        os.close(descriptor)
