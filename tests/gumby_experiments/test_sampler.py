"""Tests the samples of a running process, and that a process about to end gives none."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import psutil

from tunnel_pool.gumby_experiments.nodes.sampler import Sampler
from tunnel_pool.gumby_experiments.nodes.samples import COLUMNS, MAIN


def sampled():
    sampler = Sampler(lambda: [SimpleNamespace(number=3, role="seeder", pid=os.getpid())])
    sampler.sample()
    return [row for row in sampler.rows if row["process"] == MAIN]


def test_a_process_that_runs_is_sampled():
    (row,) = sampled()
    assert set(row) <= set(COLUMNS)
    assert (row["node"], row["role"], row["pid"]) == (3, "seeder", os.getpid())
    assert row["rss_bytes"] > 1_000_000


def test_a_process_that_has_given_its_memory_back_is_not(monkeypatch):
    monkeypatch.setattr(psutil.Process, "oneshot", lambda self: nullcontext())
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(rss=0))
    assert sampled() == []
