"""Tests the exit stream: it ends a child whose loop is blocked; a child that ignores it is killed."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.worlds.network import make_config, tunnels, until
from tunnel_pool.pool.asyncio_launcher import AsyncioLauncher, AsyncioProcess
from tunnel_pool.pool.command import child_environment
from tunnel_pool.pool.policy import EXIT_GRACE_S
from tunnel_pool.pool.process import ChildProcess
from tunnel_pool.pool.program import own_command
from tunnel_pool.pool.twisted_launcher import TwistedLauncher
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.descriptors import ALL, CONTROL_IN, EXIT_IN
from tunnel_pool.rpc.exit import EXIT_CODES, ExitKind

HERE = Path(__file__).parent
ROOT = str(HERE.parent.parent)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(9)"


class Watcher:
    """A ChildListener that records losses, ends and notifications."""

    def __init__(self):
        self.lost = []
        self.ended = []
        self.notified = []

    def child_notified(self, child, name, message):
        self.notified.append((name, message))

    def child_sent_datagram(self, child, circuit_id, address, payload):
        pass

    def child_lost(self, child, why):
        self.lost.append(why)

    def child_ended(self, child, how):
        self.ended.append(how)


@pytest.fixture(params=[TwistedLauncher, AsyncioLauncher])
def spawn(request, loop):
    """Return a function that starts a child; the test runs with each launcher."""

    def start(command):
        watcher = Watcher()
        child = ChildProcess(0, watcher, loop)
        launcher, environment = request.param(), child_environment(os.environ, ROOT)
        child.start(lambda descriptors, events: launcher.launch(command, environment, descriptors, events))
        return child, watcher

    return start


def unsent_bytes(process):
    """Return how much of the control stream waits in the main process."""
    if isinstance(process, AsyncioProcess):
        return len(process._writers[CONTROL_IN]._waiting)
    pipe = process._transport.pipes[CONTROL_IN]
    return len(pipe.dataBuffer) + len(pipe._tempDataBuffer)


def close_stream(process, descriptor):
    """Close the main process's end of the stream at `descriptor`."""
    if isinstance(process, AsyncioProcess):
        process._writers[descriptor].close()
    else:
        process._transport.closeChildFD(descriptor)


def create_message(**more):
    config = make_config()
    return pb.Create(
        slot=0,
        member_key=config.member_key,
        listen=pb.Address(host=config.listen.host),
        community_id=config.community_id,
        sync_interval_s=0.1,
        **more,
    )


async def test_a_child_has_its_streams_and_no_other_descriptor(spawn, caplog):
    caplog.set_level("INFO")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for fd in held:
        os.set_inheritable(fd, True)
    child, watcher = spawn([sys.executable, "-S", str(HERE / "list_descriptors.py")])
    await until(lambda: "descriptors" in caplog.text)
    child.request_exit("that was all")
    await until(lambda: watcher.ended)
    assert f"descriptors {sorted(ALL)}" in caplog.text
    for fd in held:
        os.close(fd)


async def test_it_ends_in_order_when_asked(spawn):
    child, watcher = spawn(own_command())
    await child.call("create", create_message())
    child.request_exit("the test is over")
    await until(lambda: watcher.ended)
    assert watcher.ended == ["ended"]
    assert watcher.lost == []


async def test_it_ends_while_control_is_stuffed_and_the_loop_is_blocked(spawn, caplog):
    caplog.set_level("INFO")
    child, watcher = spawn([sys.executable, str(HERE / "blocked_child.py")])
    await child.call("create", create_message())
    blocked = child.call("heartbeat", pb.Heartbeat())
    await until(lambda: "blocked" in caplog.text)
    stuffing = pb.Monitor(swarms=[pb.Swarm(infohash=bytes(20))] * 2000)
    stuffed = [child.call("monitor", stuffing) for _ in range(50)]
    await asyncio.sleep(0)
    assert unsent_bytes(child._process) > 0
    asked_s = time.monotonic()
    child.request_exit("end now")
    await until(lambda: watcher.ended, 20)
    assert time.monotonic() - asked_s < 10
    assert watcher.ended[0].startswith("stuck")
    assert child.exit_code == EXIT_CODES[ExitKind.STUCK]
    for future in [blocked, *stuffed]:
        assert "stuck" in str(future.exception())


async def test_a_child_that_ignores_it_is_killed(loop):
    config = make_config()
    pooled = PooledTunnelCommunity(config, [0], 1, command=[sys.executable, "-c", DEAF])
    starting = loop.create_task(pooled.pool.start())
    process = psutil.Process(await until(lambda: pooled.pool.pid(0)))
    asked_s = time.monotonic()
    await asyncio.wait_for(pooled.unload(), EXIT_GRACE_S + 5)
    assert time.monotonic() - asked_s >= EXIT_GRACE_S
    assert not process.is_running()
    await starting


async def test_a_child_dies_with_its_streams(spawn):
    """The child sees end of file on the exit stream when the main process is gone."""
    child, watcher = spawn(own_command())
    await child.call("create", create_message())
    close_stream(child._process, EXIT_IN)
    await until(lambda: watcher.ended, 15)
    assert "exit code 70" in watcher.ended[0]


async def test_unknown_calls_and_bad_requests_are_answered(spawn):
    child, watcher = spawn(own_command())
    refusals = {
        "monitor": (pb.Monitor(), pb.ERROR_NOT_READY),
        "circuit": (pb.BuildCircuit(circuit_id=1, goal_hops=1), pb.ERROR_NOT_READY),
        "create": (pb.Create(community_id=b"short"), pb.ERROR_BAD_REQUEST),
    }
    for name, (message, code) in refusals.items():
        error = (await asyncio.gather(child.call(name, message), return_exceptions=True))[0]
        assert error.code == code, name
    await child.call("create", create_message())
    wrong_slot = pb.BuildCircuit(circuit_id=1 << 24, goal_hops=1, ctype="DATA")
    unknown = pb.RemoveCircuit(circuit_id=1)
    for name, message, code in [
        ("circuit", wrong_slot, pb.ERROR_BAD_REQUEST),
        ("remove_circuit", unknown, pb.ERROR_NO_CIRCUIT),
        ("create", create_message(), pb.ERROR_BAD_REQUEST),
    ]:
        error = (await asyncio.gather(child.call(name, message), return_exceptions=True))[0]
        assert error.code == code, name
    child.request_exit("done")
    await until(lambda: watcher.ended)


async def test_the_key_is_nowhere_but_on_the_control_stream():
    """The key is not in argv, not in the environment, and not in a file of its own."""
    async with tunnels("pooled", workers=1) as client:
        process = psutil.Process(client.pool.pid(0))
        key = client._config.member_key
        shown = " ".join(process.cmdline()) + str(process.environ())
        assert key.hex() not in shown
        assert repr(key)[2:-1] not in shown
        assert not [file for file in process.open_files() if "key" in file.path]
