import pytest

from tunnel_pool.pool.command import child_environment, descriptor_map, executable_again
from tunnel_pool.rpc.descriptors import ALL


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "tunnel-pool"
    path.touch()
    return str(path)


def test_console_script(script):
    assert executable_again(script, "/py", ["-X", "dev"], frozen=False) == ["/py", "-X", "dev", script]


@pytest.mark.parametrize("argv0", ["/x/tunnel_pool/__main__.py", "/usr/bin/pytest", "-c", "", "/gone/tunnel-pool"])
def test_module_and_embedding(argv0):
    assert executable_again(argv0, "/py", [], frozen=False) == ["/py", "-m", "tunnel_pool"]


def test_frozen():
    assert executable_again("anything", "/opt/tunnel-pool", [], frozen=True) == ["/opt/tunnel-pool"]


def test_the_map_is_exactly_the_streams():
    mapping = descriptor_map(null=10, data_in=11, data_out=12, sockets=13)
    assert set(mapping) == ALL
    assert [mapping[fd] for fd in (0, 5, 6)] == [10, 11, 12]
    assert {fd for fd, how in mapping.items() if how == "w"} == {3, 7}


def test_environment_adds_the_package_last_and_keeps_the_users_own():
    environment = child_environment({"PYTHONPATH": "/a", "MALLOC_TRIM_THRESHOLD_": "1", "X": "y"}, "/package")
    assert environment["PYTHONPATH"] == "/a:/package"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "1"
    assert environment["X"] == "y"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert child_environment(environment, "/package")["PYTHONPATH"] == "/a:/package"
