"""Tests the benchmark: short runs of real contenders, and its refusals before it measures."""

import pytest

from tests.whole.test_cli import fails
from tests.worlds.commands import command
from tunnel_pool.bench import floods, limits, scaling
from tunnel_pool.packet_engine import is_built

needs_native = pytest.mark.skipif(not is_built(), reason="the native engine is not built")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["somewhere"], 2, "'somewhere' is no scenario; there are download-1"),
        (["relay", "streams"], 2, "streams is measured alone: name no other scenario"),
        (["idle", "relay"], 2, "idle is measured alone: name no other scenario"),
        (["relay", "--contenders", "native,tor"], 2, "'tor' is none of native"),
        (["relay", "--runs", "0"], 2, "--runs"),
        (["download-1", "--contenders=python", "--plot", "/no/such/folder/bench.png"], 1, "can't be written there"),
        (["download-1", "--contenders=python", "--plot", "bench.txt"], 1, "ends in .png, .svg or .pdf"),
    ],
)
async def test_it_refuses_before_it_measures(arguments, code, said):
    ended, _, line = await fails("bench", *arguments)
    assert (ended, said in line) == (code, True), line


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["relay", "exit-plain"])
async def test_cells_are_counted_for_ours_and_a_peer(scenario):
    contenders = ["native", "rust-tunnels-best-1"]
    async with command(
        "bench", scenario, "--runs=1", "--seconds=1", f"--contenders={','.join(contenders)}", "--json"
    ) as bench:
        code, report, _ = await bench.ended()
    assert code == 0, report
    rows = report["scenarios"][scenario]
    assert list(rows) == contenders
    for (row,), at_least in zip(rows.values(), (1000, 100), strict=True):
        assert row["us_per_cell"] > 0
        assert row["cells_per_s"] > at_least


@pytest.mark.slow
async def test_a_download_is_measured_against_libtorrent_alone_and_drawn(tmp_path):
    picture = tmp_path / "bench.svg"
    async with command(
        "bench", "download-2", "--runs=2", "--size=8", "--contenders=python,pyipv8", f"--plot={picture}", "--json"
    ) as bench:
        code, report, _ = await bench.ended(180)
    assert code == 0, report
    assert "libtorrent direct" in report["scenarios"]["download-2"]
    (ours, other) = report["scenarios"]["download-2"]["python"]
    for run in (ours, other, *report["scenarios"]["download-2"]["pyipv8"]):
        assert run["mb_per_s"] > 0
        spent = run["s_per_gb"]
        assert spent["relays"] + spent["exits"] > 0  # exits relay as well
    assert "<svg" in picture.read_text()


@pytest.mark.slow
async def test_an_idle_pool_is_measured_by_start_method():
    async with command("bench", "idle", "--workers=2", "--seconds=2", "--json") as bench:
        code, report, lines = await bench.ended(180)
    assert code == 0, lines
    spawn, forked = report["idle"]["spawn"], report["idle"]["forkserver"]
    for figures in (spawn, forked):
        assert figures["children"] == 3
        assert figures["cpu_percent"] > 0
        assert figures["cpu_percent"] >= figures["children_cpu_percent"] >= 0  # in two seconds a child may do nothing
        assert figures["added_child_s"] > 0
    assert forked["child_uss_mb"] < spawn["child_uss_mb"]
    assert forked["template_rss_mb"] > 0


@pytest.mark.slow
async def test_an_elastic_pool_is_sampled_and_drawn(tmp_path):
    picture = tmp_path / "elastic.svg"
    arguments = ["--workers=1..2", "--seconds=2", "--size=400", f"--plot={picture}", "--json"]
    async with command("bench", "elastic", *arguments) as bench:
        code, report, lines = await bench.ended(180)
    assert code == 0, lines
    samples = report["elastic"]["samples"]
    assert len(samples) >= 20
    assert max(sample["mb_per_s"] for sample in samples) > 1
    assert {sample["running"] for sample in samples} <= {1, 2}
    assert "<svg" in picture.read_text()


@needs_native
@pytest.mark.slow
async def test_limits_hold_and_are_shared_evenly_by_children(monkeypatch):
    monkeypatch.setattr(limits, "CHILDREN", (2,))
    monkeypatch.setattr(limits, "RATES_MB", (1, 10))
    measured = await limits.measure(3)
    for row in measured["limits"]:
        assert 0.9 < row["of_limit"] < 1.05, row
        assert row["jain"] > 0.95, row
    assert set(measured["latency"]) == {"unlimited", "below the limit"}
    assert "Jain" in limits.describe(measured)


@needs_native
@pytest.mark.slow
async def test_live_circuits_live_through_floods(monkeypatch):
    monkeypatch.setattr(floods, "RATES", {"handshakes": 3000, "garbage": 5000, "forged": 5000, "replayed": 5000})
    measured = await floods.measure(3)
    assert set(measured) == {"none", *floods.RATES}
    for name, row in measured.items():
        assert row["mb_per_s"] > 0.8 * measured["none"]["mb_per_s"], name
    assert "handshakes_of_source" in measured["handshakes"]["dropped"]
    assert set(measured["garbage"]["dropped"]) == {"udp_kernel_dropped"}
    assert set(measured["forged"]["dropped"]) == {"cell_not_decrypted"}
    assert "cell_replayed" in measured["replayed"]["dropped"]
    assert "RSS" in floods.describe(measured)


@needs_native
@pytest.mark.slow
async def test_scaling_says_what_each_child_did(monkeypatch):
    monkeypatch.setattr(scaling, "CIRCUITS", (1, 40))
    measured = await scaling.measure(2)
    assert list(measured["circuits"]) == ["1", "40"]
    assert all(len(row["busy"]) == int(children) for children, row in measured["children"].items())
    assert all(row["cells_per_s"] > 0 for row in measured["circuits"].values())
    assert "us CPU a cell" in scaling.describe(measured)
