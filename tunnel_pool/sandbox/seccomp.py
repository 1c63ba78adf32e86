"""Filters of system calls (seccomp(2), SECCOMP_MODE_FILTER), for a thread and those that it starts.

A filter is a classic BPF program over struct seccomp_data (linux/seccomp.h), in the machine's byte order:

    nr (4) | arch (4) | instruction pointer (8) | args (6 of 8)
"""

import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Collection, Mapping

from tunnel_pool.sandbox.kernel import MACHINE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl
from tunnel_pool.steering.bpf import JEQ, JGE, LD_WORD, Instruction, count, pack, ret

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NR_AT, _ARCH_AT = 0, 4
_FIRST_ARGUMENT_AT = 16 if sys.byteorder == "little" else 20  # where the lower half of the argument lies
_X32_BIT = 0x40000000  # of x86-64: the same calls under other numbers

# AUDIT_ARCH_* of linux/audit.h, and numbers of asm/unistd.h.
_ARCHITECTURES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, {
        "socket": 41, "execve": 59, "ptrace": 101, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
        "swapon": 167, "reboot": 169, "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313, "kexec_file_load": 320,
        "bpf": 321, "userfaultfd": 323, "execveat": 322, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438,
    }),
    "aarch64": (0xC00000B7, {
        "socket": 198, "execve": 221, "ptrace": 117, "pivot_root": 41, "chroot": 51, "mount": 40, "umount2": 39,
        "swapon": 224, "reboot": 142, "init_module": 105, "delete_module": 106, "kexec_load": 104, "add_key": 217,
        "request_key": 218, "keyctl": 219, "unshare": 97, "perf_event_open": 241, "open_by_handle_at": 265,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "kexec_file_load": 294,
        "bpf": 280, "userfaultfd": 282, "execveat": 281, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438,
    }),
}  # fmt: skip

# No call that a worker or libtorrent makes: other programs, other processes, other namespaces, the kernel itself.
# io_uring would open sockets that no filter sees.
FORBIDDEN = frozenset(_ARCHITECTURES["x86_64"][1]) - {"socket"}
INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})


def is_known_machine() -> bool:
    """Return whether a filter can be made for this machine."""
    return MACHINE in _ARCHITECTURES


def program(machine: str, families: Collection[int], forbidden: Collection[str] = FORBIDDEN) -> list[Instruction]:
    """Return the filter: sockets of these address families alone, and none of the forbidden calls.

    What is forbidden fails with EPERM, a socket of another family with EAFNOSUPPORT, a call in another
    architecture's way with ENOSYS. Raises KeyError for a machine that is not known.
    """
    architecture, numbers = _ARCHITECTURES[machine]
    refuse_call, refuse_family = ret(_ERRNO | errno.EPERM), ret(_ERRNO | errno.EAFNOSUPPORT)
    filter_: list[Instruction] = [(LD_WORD, 0, 0, _ARCH_AT), (JEQ, 1, 0, architecture), *ret(_ERRNO | errno.ENOSYS)]
    filter_ += [(LD_WORD, 0, 0, _NR_AT)]
    if machine == "x86_64":
        filter_ += [(JGE, 0, 1, _X32_BIT), *ret(_ERRNO | errno.ENOSYS)]
    for name in sorted(forbidden):
        filter_ += [(JEQ, 0, 1, numbers[name]), *refuse_call]
    filter_ += [(JEQ, 1, 0, numbers["socket"]), *ret(_ALLOW), (LD_WORD, 0, 0, _FIRST_ARGUMENT_AT)]
    for family in sorted(families):
        filter_ += [(JEQ, 0, 1, family), *ret(_ALLOW)]
    return [*filter_, *refuse_family]


def confine(families: Collection[int]) -> None:
    """Keep this thread, and the threads and processes that it starts, to `program` from now on. Raises OSError."""
    if not is_known_machine():
        raise OSError(errno.ENOSYS, f"no seccomp filter for {MACHINE}")
    code = pack(program(MACHINE, families))
    array = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: number of instructions, then a pointer to them
    described = ctypes.create_string_buffer(struct.pack("@HP", count(code), ctypes.addressof(array)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(described))
