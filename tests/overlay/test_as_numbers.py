"""Tests that hops of one autonomous system count as one network, given a database of AS numbers."""

import random

import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from tests.whole.test_cli import fails
from tests.worlds.network import COMMUNITY_ID, EXIT_FLAGS, RELAY_FLAGS, address_of, make_config, until, unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.ground.networks import networks_of, use_as_numbers
from tunnel_pool.overlay.ground.path import Node, rank
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.paths.as_numbers import AsDatabaseError, open_as_numbers
from tunnel_pool.overlay.paths.guards import GuardLayer, LayerSettings
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.tunnels import NodeOptions, open_tunnels


def write(path, numbers, record=lambda number: {"autonomous_system_number": number}):
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type="ASN")
    for addresses, number in numbers.items():
        writer.insert_network(IPSet([addresses]), record(number))
    writer.to_db_file(str(path))
    return path


@pytest.fixture
def known_by(tmp_path):
    def use(numbers):
        with write(tmp_path / "as.mmdb", numbers).open("rb") as database:
            use_as_numbers(open_as_numbers(database.fileno()))

    yield use
    use_as_numbers(lambda host: None)


@pytest.mark.parametrize(
    "record",
    [
        lambda number: {"autonomous_system_number": number, "autonomous_system_organization": "Some"},
        lambda number: {"asn": f"AS{number}", "name": "Some"},
    ],
)
def test_the_records_of_several_makers_are_read(record, tmp_path):
    with write(tmp_path / "as.mmdb", {"44.1.0.0/16": 7, "2a00:1::/32": 9}, record).open("rb") as database:
        as_number_of = open_as_numbers(database.fileno())
    assert [as_number_of(host) for host in ("44.1.2.3", "2a00:1::5", "45.1.1.1", "127.0.0.1")] == [7, 9, None, None]


def test_what_is_no_database_is_refused(tmp_path):
    other = write(tmp_path / "country.mmdb", {"44.1.0.0/16": 7}, lambda number: {"country": "NL"})
    (tmp_path / "garbage").write_bytes(random.randbytes(5000))
    (tmp_path / "empty").touch()
    for path, why in (
        (other, "one of AS numbers"),
        (tmp_path / "garbage", "no database"),
        (tmp_path / "empty", "no database"),
    ):
        with path.open("rb") as database, pytest.raises(AsDatabaseError, match=why):
            open_as_numbers(database.fileno())


def test_a_path_has_one_hop_in_an_as_and_one_in_a_prefix(known_by):
    known_by({"44.0.0.0/8": 7, "46.0.0.0/8": 7, "47.0.0.0/8": 8})
    assert networks_of("44.1.2.3") == {"44.1.0.0/16", "AS7"}
    path = [Node(b"a", "44.1.0.1")]
    others = [Node(b"b", "46.1.0.1"), Node(b"c", "47.1.0.1"), Node(b"d", "48.1.0.1")]
    ranked = rank(others, path, random.Random(1))
    assert {node.key for node in ranked.nodes[: ranked.diverse]} == {b"c", b"d"}
    assert ranked.nodes[-1].key == b"b"


def test_guards_are_of_several_systems(known_by):
    known_by({"44.0.0.0/8": 7, "46.0.0.0/8": 7, "47.0.0.0/8": 8})
    relays = [Node(bytes([number]), f"{44 if number % 2 else 46}.{number}.0.1") for number in range(20)]
    relays.append(Node(b"x", "47.1.0.1"))
    for seed in range(20):
        layer = GuardLayer(LayerSettings(count=2, least_days=30, most_days=60))
        keys, _ = layer.choose(relays, 0.0, random.Random(seed))
        assert b"x" in keys[:2]


@pytest.mark.parametrize("workers", [0, 1])
async def test_circuits_of_a_child_keep_to_it(workers, tmp_path):
    """The exit and one relay are in one system: the other relay is the first hop of every circuit."""
    nodes = []
    for flags in (EXIT_FLAGS, RELAY_FLAGS, RELAY_FLAGS):
        known = [address_of(node) for node in nodes]
        nodes.append(await open_overlay(make_config(flags, known, allow_private=True)))
    hosts = [address_of(node).host for node in nodes]
    database = write(tmp_path / "as.mmdb", {f"{hosts[0]}/32": 7, f"{hosts[1]}/32": 7, f"{hosts[2]}/32": 8})
    options = NodeOptions(
        WorkerRange(workers, workers),
        tmp_path,
        bootstrap=tuple(map(address_of, nodes)),
        listen=HostPort(unused_host(), 0),
        community_id=COMMUNITY_ID,
        allow_private=True,
        requires_diversity=True,
        as_database=database,
        circuits=4,
    )
    client = await open_tunnels(options)
    try:
        await until(lambda: len(client.candidates) == len(nodes))
        client.build_tunnels(2)
        circuits = await until(lambda: len(found := client.find_circuits(hops=2)) >= 4 and found)
        assert {circuit.hops[0].address[0] for circuit in circuits} == {hosts[2]}
    finally:
        await client.unload()
        for node in nodes:
            await node.unload()
        use_as_numbers(lambda host: None)


async def test_a_file_that_is_no_database_is_one_line(tmp_path):
    (tmp_path / "db").write_text("x")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path / "db", "no database in the MaxMind DB format")):
        arguments = ["magnet:?xt=urn:btih:" + 40 * "a", f"--asn-db={path}", f"--state={tmp_path}", "--bootstrap=none"]
        code, _, line = await fails("download", *arguments)
        assert (code, why in line) == (1, True), line
