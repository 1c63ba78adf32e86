"""Tests that libtorrent in a network namespace of its own reaches nobody, and that a thread cannot leave it."""

import os
import socket
import subprocess
import sys

import libtorrent as lt
import pytest

from tests.tunnel_pool.torrent.test_session import Outside
from tests.worlds.network import until
from tunnel_pool.sandbox import kernel
from tunnel_pool.sandbox.lockdown import Lockdown, LockdownError
from tunnel_pool.torrent.sessions.libtorrent_session import open_session


@pytest.fixture
def lockdown():
    try:
        opened = Lockdown()
    except LockdownError as error:
        pytest.skip(f"no lockdown here: {error}")
    yield opened
    opened.close()


def plain_session():
    """Return a session without a proxy: whatever reaches the outside by it, the kernel has let out."""
    quiet = ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp")
    return open_session({"listen_interfaces": "0.0.0.0:0", "ssrf_mitigation": False, **dict.fromkeys(quiet, False)})


async def reached_by(session, tmp_path):
    """Return which listeners a torrent of this session reaches: 0 a WebTorrent tracker, 1 an HTTP tracker, 2 a peer."""
    outsides = [Outside() for _ in range(3)]
    web, tracker, peer = [f"{outside.host}:{outside.port}" for outside in outsides]
    parameters = lt.parse_magnet_uri(
        f"magnet:?xt=urn:btih:{'01' * 20}&tr=ws://{web}/&tr=http://{tracker}/announce&x.pe={peer}"
    )
    parameters.save_path = str(tmp_path)
    handle = session.add_torrent(parameters)
    handle.resume()
    reached = set()

    def have_failed_or_reached():
        reached.update(number for number, outside in enumerate(outsides) if outside.was_reached())
        failed = [entry["fails"] for entry in handle.trackers()]
        return len(reached) == 3 or all(failed)

    await until(have_failed_or_reached)
    for outside in outsides:
        outside.close()
    return reached


@pytest.mark.slow
async def test_a_session_without_lockdown_shows_that_the_listeners_listen(tmp_path):
    assert await reached_by(plain_session(), tmp_path) == {0, 1, 2}


async def test_a_session_that_is_locked_down_reaches_nobody(lockdown, tmp_path):
    assert await reached_by(lockdown.call(plain_session), tmp_path) == set()


def attempt(action):
    try:
        action()
    except OSError as error:
        return error.strerror
    return "done"


def test_what_a_thread_in_it_can_not_do(lockdown):
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    setns = {"x86_64": 308, "aarch64": 268}[kernel.MACHINE]
    attempts = {
        "go back": lambda: kernel.syscall(setns, outside, kernel.CLONE_NEWNET),
        "make another": lambda: kernel.unshare(kernel.CLONE_NEWNET),
        "ask a resolver of the system": lambda: socket.socket(socket.AF_UNIX),
        "read packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "run a program": lambda: subprocess.run(["true"]),
        "resolve a name": lambda: socket.getaddrinfo("name.example", 80),
        "send": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
        "send to the world": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
    }
    said = lockdown.call(lambda: {name: attempt(action) for name, action in attempts.items()})
    os.close(outside)
    assert said.pop("send") == "done"  # to its own loopback
    assert "done" not in said.values(), said


def test_it_is_a_thread_that_is_locked_down_not_the_process(lockdown):
    inside = lockdown.call(lambda: os.readlink("/proc/thread-self/ns/net"))
    assert inside != os.readlink("/proc/self/ns/net")
    socket.socket(socket.AF_UNIX).close()
    assert subprocess.run(["true"]).returncode == 0


def test_what_prepare_leaves_a_user_who_is_not_root():
    """A process of its own shows that it may lock down then, and what it starts has no new rights."""
    code = (
        "import os, ctypes, subprocess\n"
        "from tunnel_pool.sandbox.lockdown import *\n"
        "ctypes.CDLL(None).setgroups(0, None); os.setgid(65534); os.setuid(65534)\n"
        "prepare()\n"
        "try: Lockdown().close()\n"
        "except LockdownError as error: print('none', error)\n"
        "else:\n"
        "    started = subprocess.run(['grep', 'CapEff', '/proc/self/status'], capture_output=True)\n"
        "    print(os.getuid(), started.stdout)\n"
    )
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    said = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], capture_output=True
    )
    if said.stdout.startswith(b"none"):
        pytest.skip(f"no user namespaces here: {said.stdout.decode()}")
    assert said.stdout.decode().strip() == "65534 b'CapEff:\\t0000000000000000\\n'", said.stderr.decode()
