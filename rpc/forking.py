"""Messages between the main process and its template (child/template.py), over a SOCK_SEQPACKET socket. Pure.

From the template READY, once; then for each FORK, which has the descriptors of a
child with it (SCM_RIGHTS, tunnel_pool.rpc.descriptors.ALL in order), a reply: int32, big endian,
the pid of the child, or a negative errno.
"""

import struct

READY = b"ready"
FORK = b"fork"
MAX_MESSAGE_BYTES = 16

_REPLY = struct.Struct("!i")


def encode_reply(pid: int) -> bytes:
    return _REPLY.pack(pid)


def decode_reply(message: bytes) -> int:
    """Return the pid. Raises OSError when there is none."""
    if len(message) != _REPLY.size:
        raise ChildProcessError("the template gave no answer")
    pid: int = _REPLY.unpack(message)[0]
    if pid <= 0:
        raise OSError(-pid, "the template cannot fork")
    return pid
