"""Tests the rules of the source: allowed imports, modules that must be pure, and the length of files."""

import ast
import re
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
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
TOPS = ("child", "gumby_experiments", "rpc", "socks5", "tunnel_pool")  # folders; each package is one or in the last
MAY_IMPORT = {
    "child": {"overlay", "packet_engine", "rpc", "sandbox", "socks5", "steering"},
    "gumby_experiments": {"overlay", "packet_engine", "rpc", "socks5", "tunnel_pool"},
    "overlay": {"packet_engine", "rpc", "socks5", "steering"},
    "packet_engine": {"rpc"},
    "rpc": set(),
    "sandbox": {"steering"},
    "socks5": {"rpc", "steering"},
    "steering": set(),
    "tunnel_pool": {"overlay", "packet_engine", "rpc", "sandbox", "socks5", "steering"},
}
# Starts what another package has; nothing else of its package may.
DOORS = {"tunnel_pool/cli/experiment.py": {"gumby_experiments"}}
IO_MODULES = {"asyncio", "twisted", "time", "socket", "threading", "select", "subprocess", "os"}
# The names in the module `socket` that only convert addresses to bytes and back.
ADDRESS_CODECS = {"AF_INET", "AF_INET6", "inet_aton", "inet_ntoa", "inet_ntop", "inet_pton"}
MAX_LINES = 420
MAX_MAP_LINES = 250
MAX_MODULES = 16
MAX_ANY_LINES = 60


def sources():
    return [path for top in TOPS for path in (ROOT / top).rglob("*.py") if "_pb2" not in path.name]


def package_of(path):
    """Return the package of a source file: the room of tunnel_pool that is one by itself, or else the top folder."""
    top, room, *_ = *path.relative_to(ROOT).parts, ""
    return room if top == "tunnel_pool" and room in PACKAGES else top


def names_imported(path):
    """Yield the full names that a file imports, wherever in it, also for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path):
    """Yield the package of each import: for our modules the top folder, for others the first part of the name."""
    for name in names_imported(path):
        first, second, *_ = *name.split("."), ""
        yield second if first == "tunnel_pool" and second in PACKAGES else first


def module_name(path):
    """Return the name that a source file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "tunnel_pool" else ("tunnel_pool", *parts))


@pytest.fixture(scope="module")
def modules():
    """Return the source file of each module of ours."""
    return {module_name(path): path for path in sources()}


def imported_modules(path, modules):
    """Return the modules of ours that a file imports."""
    found = set()
    for name in names_imported(path):
        module = name
        while module and module not in modules:
            module = module.rpartition(".")[0]
        if module:
            found.add(module)
    return found - {module_name(path), "tunnel_pool"}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way_and_files_are_short(path):
    package = package_of(path)
    foreign = (set(imported(path)) & set(PACKAGES)) - {package}
    assert foreign <= MAY_IMPORT[package] | DOORS.get(str(path.relative_to(ROOT)), set())
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_the_daemon_knows_what_its_values_are():
    """`Any` switches mypy off: for what is read from elsewhere, `object` asks to look first."""
    lines = [line for path in (ROOT / "tunnel_pool" / "daemon").rglob("*.py") for line in path.read_text().splitlines()]
    found = [line for line in lines if re.search(r"\bAny\b", line) and not line.startswith("from ")]
    assert 0 < len(found) <= MAX_ANY_LINES


def test_a_room_can_be_taken_in_at_a_glance():
    rooms = Counter(path.parent for path in sources() if path.name != "__init__.py")
    assert len(rooms) > 40
    assert {str(room.relative_to(ROOT)): number for room, number in rooms.items() if number > MAX_MODULES} == {}


def test_the_map_is_short():
    assert len((ROOT / "docs" / "ARCHITECTURE.md").read_text().splitlines()) <= MAX_MAP_LINES


def test_no_module_imports_itself_by_way_of_others(modules):
    """Imports that are for type checkers alone count as well: who reads a file has to read what it names."""
    graph = {name: imported_modules(path, modules) for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_no_room_imports_itself_by_way_of_others(modules):
    """A room is a folder; of a folder that has rooms, each module puts some of them together, and stands for itself."""
    folders = {path.parent for path in modules.values()}
    outer = {parent for folder in folders for parent in folder.parents}

    def room_of(name):
        path = modules[name]
        return str((path if path.parent in outer else path.parent).relative_to(ROOT))

    graph = defaultdict(set)
    for name, path in modules.items():
        graph[room_of(name)] |= {room_of(other) for other in imported_modules(path, modules)} - {room_of(name)}
    TopologicalSorter(graph).prepare()


def test_no_module_of_the_engine_uses_itself_by_way_of_others():
    """Modules of tunnel_pool/packet_engine/src must not either; the unit tests in a module may use any other module."""
    source = ROOT / "tunnel_pool" / "packet_engine" / "src"
    paths = {
        "::".join(path.relative_to(source).with_suffix("").parts).removesuffix("::mod"): path
        for path in source.rglob("*.rs")
    }
    graph = {}
    for name, path in paths.items():
        code = path.read_text().partition("#[cfg(test)]")[0]
        used = re.findall(r"crate::((\w+)(?:::\w+)?)", code)
        graph[name] = {whole if whole in paths else first for whole, first in used} - {name}
    assert "streams::doors" in graph
    TopologicalSorter(graph).prepare()


def io_of(path):
    names = {name for name in names_imported(path) if name.split(".")[0] in IO_MODULES}
    return names - {f"socket.{name}" for name in ADDRESS_CODECS}


def pure():
    """Return the modules that say so of themselves."""
    said = re.compile(r"\bPure[.:]")
    return [path for path in sources() if said.search(ast.get_docstring(ast.parse(path.read_text())) or "")]


@pytest.mark.parametrize("path", pure(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_logic_knows_no_clock_socket_or_loop(path, modules):
    """Neither does anything that it imports."""
    name = module_name(path)
    reached, left = set(), [name]
    while left:
        module = left.pop()
        assert not io_of(modules[module]), f"{name} imports {module}"
        new = imported_modules(modules[module], modules) - reached
        reached |= new
        left += new
