"""The house rules that a reader relies on: who imports whom, what is pure, how long a file is."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "child",
    "gumby_experiments",
    "overlay",
    "packet_engine",
    "rpc",
    "sandbox",
    "socks5",
    "steering",
    "tunnel_pool",
)
MAY_IMPORT = {
    "child": {"overlay", "packet_engine", "rpc", "sandbox", "socks5", "steering"},
    "gumby_experiments": {"overlay", "packet_engine", "rpc", "socks5", "tunnel_pool"},
    "overlay": {"packet_engine", "rpc", "steering"},
    "packet_engine": set(),
    "rpc": set(),
    "sandbox": {"steering"},
    "socks5": {"steering"},
    "steering": set(),
    "tunnel_pool": {"overlay", "packet_engine", "rpc", "sandbox", "socks5", "steering"},
}
# Starts what another package has; nothing else of its package may.
DOORS = {"tunnel_pool/cli/experiment.py": {"gumby_experiments"}}
PURE = [
    "gumby_experiments/codecs.py",
    "gumby_experiments/compare.py",
    "gumby_experiments/progress.py",
    "gumby_experiments/scenario.py",
    "gumby_experiments/simulation.py",
    "gumby_experiments/statistics.py",
    "tunnel_pool/cut/graph.py",
    "tunnel_pool/anonymous_torrents.py",
    "tunnel_pool/tracker_answers.py",
    "tunnel_pool/reach.py",
    "rpc/calls.py",
    "rpc/data.py",
    "rpc/descriptors.py",
    "rpc/errors.py",
    "rpc/exit.py",
    "rpc/forking.py",
    "rpc/framing.py",
    "rpc/sync.py",
    "socks5/handshake.py",
    "socks5/messages.py",
    "socks5/steering.py",
    "steering/bpf.py",
    "overlay/asking.py",
    "overlay/backoff.py",
    "overlay/balance.py",
    "overlay/guards.py",
    "overlay/networks.py",
    "overlay/own_address.py",
    "overlay/paths.py",
    "overlay/bucket.py",
    "overlay/admission.py",
    "steering/cells.py",
    "tunnel_pool/daemon/guard.py",
    "tunnel_pool/daemon/hops.py",
    "tunnel_pool/daemon/queue.py",
    "tunnel_pool/daemon/record.py",
    "tunnel_pool/daemon/settings.py",
    "tunnel_pool/daemon/transmission/names.py",
    "tunnel_pool/node/policy.py",
    "tunnel_pool/node/rates.py",
    "overlay/sticky.py",
    "tunnel_pool/pool/owners.py",
    "tunnel_pool/pool/policy.py",
    "tunnel_pool/pool/scaling.py",
]
IO_MODULES = {"asyncio", "twisted", "time", "socket", "threading", "select", "subprocess", "os"}
MAX_LINES = 420


def sources():
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]


def imported(path):
    """What a file imports, wherever in it: of ours the folder at the top, of others the first part."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, second, *_ = *name.split("."), ""
            yield second if first == "tunnel_pool" and second in PACKAGES else first


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way_and_files_are_short(path):
    package = path.relative_to(ROOT).parts[0]
    foreign = (set(imported(path)) & set(PACKAGES)) - {package}
    assert foreign <= MAY_IMPORT[package] | DOORS.get(str(path.relative_to(ROOT)), set())
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", PURE)
def test_pure_logic_knows_no_clock_socket_or_loop(name):
    assert not set(imported(ROOT / name)) & IO_MODULES
