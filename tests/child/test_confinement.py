"""Tests the confinement of children: the system calls refused to them, and what /proc shows for a real pool's child."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.worlds.commands import ROOT
from tests.worlds.network import address_of, network, tunnels
from tunnel_pool.pool.command import only_for_children
from tunnel_pool.sandbox import kernel, landlock, seccomp
from tunnel_pool.steering.bpf import RET

TRIES = """
import ctypes, json, os, socket, subprocess, sys
from pathlib import Path
secret, folder = Path(sys.argv[1]), Path(sys.argv[2])
from tunnel_pool.child.confinement import confine_process, give_up_names
said = {"missing": confine_process()}

def attempt(name, action):
    try:
        action()
        said[name] = "done"
    except OSError as error:
        said[name] = os.strerror(error.errno)

attempt("read the system's configuration", Path("/etc/passwd").read_bytes)
attempt("import a module", lambda: __import__("sqlite3"))
attempt("send", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
attempt("write to /dev/null", lambda: open("/dev/null", "w").close())
attempt("reach a resolver", lambda: socket.socket(socket.AF_UNIX).close())
attempt("read the key", secret.read_bytes)
attempt("list the folder", lambda: os.listdir(folder))
attempt("write a file", lambda: (folder / "file").write_text("x"))
attempt("run a program", lambda: subprocess.run(["true"]))
attempt("read packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("read its parent's memory", lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1))
attempt("read its parent's environment", lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(1))
attempt("signal its parent", lambda: os.kill(os.getppid(), 0))
give_up_names()
attempt("reach a resolver no more", lambda: socket.socket(socket.AF_UNIX).close())
print(json.dumps(said))
"""
ALLOWED = {
    "read the system's configuration", "import a module", "send", "write to /dev/null", "reach a resolver",
}  # fmt: skip


def test_what_a_child_tries(tmp_path):
    if landlock.abi() < 6 or not seccomp.is_known_machine():
        pytest.skip("this kernel lacks a part of it")
    secret = tmp_path / "member_key.bin"
    secret.write_bytes(b"key")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{TRIES}"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(secret), str(tmp_path)], capture_output=True, cwd="/", check=True
    )
    said = json.loads(ran.stdout)
    assert said.pop("missing") == []
    assert {name for name, how in said.items() if how == "done"} == ALLOWED, said


def kernel_says(pid):
    """Return the fields of /proc/PID/status, and the line of /proc/PID/limits about core dumps."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in status), next(line for line in limits if "core" in line)


async def test_the_children_of_a_pool_are_confined_and_know_no_password(monkeypatch):
    monkeypatch.setenv("TUNNEL_POOL_RPC_PASSWORD", "a secret")
    async with network(exits=1) as nodes, tunnels("pooled", map(address_of, nodes), workers=1) as client:
        (pid,) = (client.pool.pid(slot) for slot in client.pool.working())
        status, core = kernel_says(pid)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2" or not seccomp.is_known_machine()
        assert core.split()[4:6] == ["0", "0"]
        assert int(status["CapEff"], 16) == 0
        if os.geteuid() == 0:
            assert "a secret" not in str(psutil.Process(pid).environ())


def test_which_variables_children_are_given():
    given = {"PATH": "/bin", "TUNNEL_POOL_RPC_PASSWORD": "x", "AWS_SECRET_KEY": "x", "LC_ALL": "C", "PYTHONPATH": "/x"}
    assert only_for_children(given).keys() == {"PATH", "LC_ALL", "PYTHONPATH"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_is_a_program_whose_jumps_stay_inside_and_that_ends(machine):
    program = seccomp.program(machine, {2, 10})
    for place, (code, if_true, if_false, _) in enumerate(program):
        assert place + 1 + max(if_true, if_false) < len(program) or code == RET
    assert program[-1][0] == RET
    assert len(program) < 256


def test_numbers_of_calls_are_those_of_this_machine():
    """The number of socket(2) is checked by a call, which must return a descriptor; the numbers must all differ."""
    if not seccomp.is_known_machine():
        pytest.skip("no numbers for this machine")
    numbers = seccomp._ARCHITECTURES[kernel.MACHINE][1]
    descriptor = kernel.syscall(numbers["socket"], 2, 2, 0)
    os.close(descriptor)
    assert len(set(numbers.values())) == len(numbers)
