"""Tests programs that embed the pool: frozen ones, and those on machines where no pool can run."""

import logging
import os
import sys
from types import SimpleNamespace

import pytest

from tests.worlds.commands import ROOT, command
from tunnel_pool import framework, hosting
from tunnel_pool.pool import launchers, switches
from tunnel_pool.pool.asyncio_launcher import AsyncioLauncher
from tunnel_pool.socks5.asyncio_network import AsyncioNetwork
from tunnel_pool.tribler import pooled_class


@pytest.mark.parametrize(
    ("start_method", "switch", "more"),
    [
        ("spawn", "--host-worker", []),
        ("forkserver", "--host-template", []),
        ("spawn", "--host-worker", ["--ignores-children"]),
    ],
)
async def test_a_frozen_programs_children_are_started_with_its_own_switches(start_method, switch, more, tmp_path):
    """The host's argparse would refuse ours; no reactor runs, and the pool is made before the loop runs."""
    executable = tmp_path / "host"
    executable.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.worlds.host_program "$@"\n')
    executable.chmod(0o755)
    environment = {"HOST_PROGRAM": str(executable), "PYTHONPATH": str(ROOT)}
    arguments = [f"--start-method={start_method}", *more]
    async with command(*arguments, program=[executable], environment=environment) as host:
        code, told, lines = await host.ended(60)
    assert code == 0, lines
    assert set(told["switches"]) == {switch}
    assert told["running"] == 2
    assert told["left"] == 0
    assert not told["twisted"]


def test_a_hosts_switches_are_not_ours():
    used = dict(switches._of_a_host)
    try:
        hosting.use_switches("--a", "--b")
        assert [switches.hosts_module_for(word) for word in ("--a", "--b", "--child", "")] == [
            "tunnel_pool.child", "tunnel_pool.child.template", None, None,
        ]  # fmt: skip
        assert switches.own_module_for("--child") == "tunnel_pool.child"
        assert switches.own_module_for("--a") is None
    finally:
        switches._of_a_host.update(used)


def test_a_reactor_that_nobody_runs_starts_no_processes(monkeypatch):
    monkeypatch.setitem(sys.modules, "twisted.internet.reactor", SimpleNamespace(running=False))
    assert isinstance(launchers.own_launcher(), AsyncioLauncher)
    assert isinstance(framework.own_network(), AsyncioNetwork)


def test_a_pool_can_run_here():
    assert hosting.why_no_pool() is None


class Plain:
    pass


def without_pidfd(pid):
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ((sys, "platform"), "darwin", "it needs Linux, and this is darwin"),
        ((os, "pidfd_open"), without_pidfd, "it needs Linux 5.3 or newer (Function not implemented)"),
        ((hosting, "NEEDED"), ("google.protobuf", "no_such.module"), "no_such.module can't be imported"),
    ],
)
def test_where_no_pool_can_run_tribler_has_its_own_tunnels(place, value, why, monkeypatch, caplog):
    monkeypatch.setattr(*place, value)
    with caplog.at_level(logging.WARNING):
        assert pooled_class(Plain, 2, "circuit_removed") is Plain
    (record,) = caplog.records
    assert record.message == f"Tunnels run in one process, as no pool of workers can run here: {why}"


def test_without_workers_tribler_has_its_own_tunnels(caplog):
    assert pooled_class(Plain, 0, "circuit_removed") is Plain
    assert not caplog.records
