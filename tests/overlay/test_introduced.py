"""Tests whom an introduction point introduces if several circuits claim to lead to the same seeder."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.payload import EstablishIntroPayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER, PEER_FLAG_RELAY

from tests.overlay.test_hidden import INFOHASH, linked, member, relays
from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import until
from tunnel_pool.overlay.hidden_swarms.introduced import (
    MAX_BESIDE_THE_FIRST,
    MAX_CONTENDERS,
    MAX_INTRODUCED,
    MAX_OF_A_CIRCUIT,
    IntroducedSeeder,
    IntroducedSeeders,
)
from tunnel_pool.overlay.hidden_swarms.services import WatchedSwarm

SEEDER, OTHER = IntroducedSeeder(b"seeder", INFOHASH), IntroducedSeeder(b"seeder", b"i" * 20)


def test_some_circuits_may_lead_to_the_same_seeder():
    table = IntroducedSeeders()
    assert [table.add(number, SEEDER) for number in (1, 1, 2, 3, 4)] == [True, False, True, True, False]
    assert table.circuits_of(SEEDER) == (1, 2, 3)
    assert len(table.circuits_of(SEEDER)) == MAX_CONTENDERS
    assert table.add(5, OTHER)
    assert [known for known, _ in table.circuits_of_key(b"seeder")] == [1, 2, 3, 5]


def test_a_seeder_is_introduced_until_its_last_circuit_is_gone():
    table = IntroducedSeeders()
    assert table.remove(1) == []
    table.add(1, SEEDER)
    table.add(1, OTHER)
    table.add(2, SEEDER)
    assert table.remove(1) == [SEEDER, OTHER]
    assert table.circuits_of(SEEDER) == (2,)
    assert OTHER not in table
    assert table.seeders_of(1) == ()
    assert table.remove(2) == [SEEDER]
    assert SEEDER not in table


def seeder_number(number):
    return IntroducedSeeder(str(number).encode(), INFOHASH)


def test_no_more_circuits_introduce_than_there_is_room_for():
    table = IntroducedSeeders()
    added = [table.add(number, seeder_number(number)) for number in range(MAX_INTRODUCED + 1)]
    assert added == [True] * MAX_INTRODUCED + [False]


def test_circuits_with_many_seeders_leave_room_for_those_with_one():
    table = IntroducedSeeders()
    number = 0
    for circuit_id in range(1, 100):
        added = [table.add(circuit_id, seeder_number(number := number + 1)) for _ in range(MAX_OF_A_CIRCUIT + 1)]
        assert added[0]
        assert not added[-1]
    assert sum(len(table.seeders_of(circuit_id)) for circuit_id in range(1, 100)) == 99 + MAX_BESIDE_THE_FIRST
    table.remove(1)
    assert table.add(100, seeder_number(number + 1))
    assert table.add(100, seeder_number(number + 2))


@asynccontextmanager
async def squatted():
    """Yield the relays, an introduction point among them, the seeder that it introduces, and a squatter.

    The squatter said at the point that it is this seeder, before the seeder itself did.
    """
    key = default_eccrypto.generate_key("curve25519")
    contested = IntroducedSeeder(key.pub().key_to_bin(), INFOHASH)
    async with relays(3) as nodes, member(nodes) as squatter, member(nodes) as seeder:
        point = nodes[0]
        peer = await until(lambda: [p for p in squatter.get_candidates(PEER_FLAG_RELAY) if p.mid == point.my_peer.mid])
        circuit = await until(
            lambda: squatter.create_circuit(1, CIRCUIT_TYPE_IP_SEEDER, required_exit=peer[0]), what="a circuit"
        )
        assert await circuit.ready
        squatter.send_cell(
            circuit.hop.address, EstablishIntroPayload(circuit.circuit_id, 1, INFOHASH, contested.seeder_key)
        )
        await until(lambda: contested in point.introduced)
        await until(lambda: [p for p in seeder.get_candidates(PEER_FLAG_RELAY) if p.mid == point.my_peer.mid])
        seeder.create_introduction_point = partial(seeder.create_introduction_point, required_ip=peer[0])
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        seeder.swarms[INFOHASH].seeder_sk = key
        await until(lambda: len(point.introduced.circuits_of(contested)) == 2, what="the seeder beside the squatter")
        yield nodes, point, contested, squatter


@pytest.mark.usefixtures("engine")
@ENGINES_PYTHON_SLOW
async def test_a_seeder_is_found_at_a_point_where_somebody_took_its_key_before():
    async with squatted() as (nodes, _, _, _), member(nodes) as downloader:
        downloader.watch([WatchedSwarm(INFOHASH, 1, False)])
        await until(lambda: linked(downloader, CIRCUIT_TYPE_RP_DOWNLOADER), 60, "the link")


@pytest.mark.usefixtures("engine")
@ENGINES_PYTHON_SLOW
async def test_a_seeder_stays_introduced_when_the_one_before_it_goes():
    async with squatted() as (_, point, contested, squatter):
        first, second = point.introduced.circuits_of(contested)
        assert point.intro_point_for[contested.seeder_key][0].circuit_id == first
        squatter.remove_circuit(first, destroy=1)
        await until(lambda: point.introduced.circuits_of(contested) == (second,))
        assert point.intro_point_for[contested.seeder_key][0].circuit_id == second
        assert contested.seeder_key in point.pex[INFOHASH].intro_points_for
        assert point.get_max_time(second) == point.settings.max_time_ip


@pytest.mark.usefixtures("engine")
@ENGINES_PYTHON_SLOW
async def test_what_comes_over_a_circuit_that_is_being_removed_is_not_kept(monkeypatch):
    async with squatted() as (_, point, contested, squatter):
        first, second = point.introduced.circuits_of(contested)
        late = IntroducedSeeder(b"late", INFOHASH)
        remove = HiddenTunnelCommunity.remove_exit_socket

        async def removed_slowly(self, circuit_id, *args, **kwargs):
            assert self.introduced.add(circuit_id, late)
            self.rendezvous_point_for[b"cookie"] = self.exit_sockets[circuit_id]
            return await remove(self, circuit_id, *args, **kwargs)

        monkeypatch.setattr(HiddenTunnelCommunity, "remove_exit_socket", removed_slowly)
        squatter.remove_circuit(first, destroy=1)
        await until(lambda: first not in point.exit_sockets and point.introduced.circuits_of(contested) == (second,))
        monkeypatch.undo()
        await until(lambda: late not in point.introduced and not point.rendezvous_point_for)
