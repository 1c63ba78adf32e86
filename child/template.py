"""The template: a process with all modules imported, from which children are forked (start method forkserver).

It has one thread, no loop and no key, so that a fork of it is as clean as a new
process, and its pages are shared by all children (thesis section 5.2.3). The
main process adopts the children, whose parent ends at once (rpc/lifeline.py).
"""

import contextlib
import fcntl
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from tunnel_pool.child.__main__ import main as be_child
from tunnel_pool.packet_engine import is_built
from tunnel_pool.rpc.descriptors import ALL, REQUESTS
from tunnel_pool.rpc.forking import FORK, MAX_MESSAGE_BYTES, READY, encode_reply
from tunnel_pool.rpc.lifeline import close_other_descriptors, die_with_parent

ABOVE_ALL = len(ALL)
MAX_PID_DIGITS = 20
EXIT_CODE_FAILED = 1


def serve(requests: socket.socket) -> None:
    """Fork a child for each request, until the main process is gone."""
    requests.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, len(ALL))
        if not message:
            return
        if message != FORK or len(descriptors) != len(ALL):
            raise ValueError(f"{message!r} with {len(descriptors)} descriptors is no request")
        try:
            reply = fork_orphan(lambda descriptors=descriptors: _become_child(descriptors))  # type: ignore[misc]
        except OSError as error:
            reply = -(error.errno or 1)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(encode_reply(reply))


def fork_orphan(run: Callable[[], NoReturn]) -> int:
    """Return the pid of a process that runs this, and whose parent has ended: it is the main process' child now.

    Raises OSError, BlockingIOError when there was no process for it.
    """
    with contextlib.ExitStack() as ends:
        pid_in, pid_out = os.pipe()
        ends.callback(os.close, pid_in)
        ends.callback(os.close, pid_out)
        os.set_blocking(pid_in, False)
        orphaned_in, orphaned_out = os.pipe()
        ends.callback(os.close, orphaned_in)
        ends.callback(os.close, orphaned_out)
        helper = os.fork()
        if helper == 0:
            _fork_and_end(run, pid_out, orphaned_in, orphaned_out)
        # Only a helper that has been waited for is no parent any more: the kernel closes its files before.
        os.waitpid(helper, 0)
        return int(os.read(pid_in, MAX_PID_DIGITS))


def _fork_and_end(run: Callable[[], NoReturn], pid_out: int, orphaned_in: int, orphaned_out: int) -> NoReturn:
    try:
        pid = os.fork()
        if pid == 0:
            os.close(pid_out)
            os.close(orphaned_out)
            os.read(orphaned_in, 1)  # end of file: the helper has ended, and the template has closed its end
            run()
        os.write(pid_out, str(pid).encode())
    finally:
        os._exit(0)


def _become_child(descriptors: Sequence[int]) -> NoReturn:
    """Put the descriptors where a spawned child would find them, close all others, and be a child."""
    try:
        out_of_the_way = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, ABOVE_ALL) for descriptor in descriptors]
        for number, descriptor in zip(sorted(ALL), out_of_the_way, strict=True):
            os.dup2(descriptor, number)
        close_other_descriptors()
        gc.enable()
        be_child()
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(EXIT_CODE_FAILED)


def main() -> None:
    die_with_parent(os.getppid())
    if is_built():
        import tunnel_pool.packet_engine.endpoint  # noqa: F401 - children would each import it
    gc.collect()
    gc.disable()
    gc.freeze()  # without it the first collection of each child would copy all pages
    serve(socket.socket(fileno=REQUESTS))


if __name__ == "__main__":
    main()
