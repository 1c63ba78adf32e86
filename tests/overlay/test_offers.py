"""Tests which circuits offer the swarms that we seed, and which swarms a shared circuit may ask for."""

import pytest
from ipv8.messaging.anonymization.payload import CreateE2EPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
)

from tests.overlay.test_hidden import linked, member, relays
from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import until
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER, OWN_CIRCUITS, Offers
from tunnel_pool.overlay.hidden_swarms.services import WatchedSwarm


def swarm(number):
    return number.to_bytes(20)


def offered(number, together=MOST_TOGETHER, offers=None):
    """Return offers of so many swarms, of which each takes the circuit that it should, and the circuits' ids."""
    offers, circuits = offers or Offers(together), []
    for each in range(number):
        circuit_id = offers.circuit_for_one_more(circuits)
        if circuit_id is None:
            circuits.append(circuit_id := 1 + len(circuits))
        offers.offer(swarm(each), circuit_id)
        offers.accepted(swarm(each), circuit_id)
    return offers, circuits


def test_a_few_swarms_have_circuits_of_their_own():
    offers, circuits = offered(OWN_CIRCUITS)
    assert len(circuits) == OWN_CIRCUITS
    assert all(len(offers.swarms_of(circuit_id)) == 1 for circuit_id in circuits)


def test_many_swarms_share_as_few_circuits_as_can_be():
    offers, circuits = offered(2000)
    assert len(circuits) == 63
    assert all(offers.is_accepted(swarm(each)) and offers.has(swarm(each)) for each in range(2000))


def test_where_sharing_is_off_each_swarm_has_its_own():
    assert len(offered(100, together=1)[1]) == 100


def test_a_circuit_serves_its_own_swarms_alone():
    offers, _ = offered(100)
    for each in range(100):
        (circuit_id,) = offers.circuits_of(swarm(each))
        assert [at for at in range(1, OWN_CIRCUITS + 1) if offers.serves(at, swarm(each))] == [circuit_id]


def test_a_circuit_that_is_lost_has_its_swarms_offered_elsewhere():
    offers, circuits = offered(100)
    of_circuit = offers.swarms_of(circuits[3])
    offers.lost(circuits[3])
    assert [swarm(each) for each in range(100) if not offers.has(swarm(each))] == list(of_circuit)
    assert not any(map(offers.is_accepted, of_circuit))
    offers.lost(circuits[3])


def test_a_circuit_whose_introduction_point_does_not_answer_gets_no_more():
    offers, circuits = offered(OWN_CIRCUITS)
    assert offers.circuit_for_one_more(circuits) == 1
    offers.offer(b"x", 1)
    assert not offers.is_accepted(b"x")
    assert not offers.refused(b"x", 1)  # the circuit offers its first
    assert not offers.has(b"x")
    assert offers.circuit_for_one_more(circuits) == 2
    assert offers.circuit_for_one_more(circuits[:1]) is None
    assert not offers.refused(b"x", 1)  # heard a second time
    offers.offer(b"y", 99)
    assert offers.refused(b"y", 99)  # it offers nothing else


def test_a_circuit_ends_once_it_offers_more_that_is_left_than_not():
    offers, circuits = offered(5 * OWN_CIRCUITS)
    first = circuits[0]
    members = offers.swarms_of(first)
    assert len(members) == 5
    assert [offers.leave(each) for each in members[:3]] == [[], [], [first]]
    assert offers.swarms_of(first) == members[3:]
    assert offers.leave(b"unknown") == []
    alone, _ = offered(1)
    assert alone.leave(swarm(0)) == [1]


def test_what_is_left_takes_the_room_of_what_could_be_offered():
    offers, circuits = offered(2 * OWN_CIRCUITS, together=2)
    assert offers.circuit_for_one_more(circuits) is None
    assert offers.leave(swarm(0)) == []
    assert offers.circuit_for_one_more(circuits) is None


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.setattr("tunnel_pool.overlay.ground.offers.OWN_CIRCUITS", 1)


@pytest.mark.usefixtures("engine", "shared")
@ENGINES_PYTHON_SLOW
async def test_swarms_that_share_an_introduction_point_are_all_found_there():
    swarms = [swarm(each) for each in range(3)]
    async with relays(4) as nodes, member(nodes) as seeder, member(nodes) as downloader:
        seeder.watch([WatchedSwarm(info_hash, 1, True) for info_hash in swarms])
        await until(lambda: all(map(seeder.is_offered, swarms)), what="all three")
        (circuit,) = seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER, state=None)
        (point,) = [node for node in nodes if node.introduced.seeders_of(circuit.circuit_id) or node.intro_point_for]
        assert {info_hash for _, info_hash in point.intro_point_for.values()} == set(swarms)
        keys = {seeder.swarms[info_hash].seeder_sk.pub().key_to_bin() for info_hash in swarms}
        assert set(point.intro_point_for) == keys
        assert len(keys) == 3  # outside of the point nothing says that they are one user's
        downloader.watch([WatchedSwarm(swarms[1], 1, False), WatchedSwarm(swarms[2], 1, False)])
        await until(lambda: len(linked(downloader, CIRCUIT_TYPE_RP_DOWNLOADER)) == 2, 60, "the links")
        assert {known.info_hash for known in linked(seeder, CIRCUIT_TYPE_RP_SEEDER)} == set(swarms[1:])
        # The two that stay are found as before when the one that the circuit was built for is left.
        seeder.watch([WatchedSwarm(info_hash, 1, True) for info_hash in swarms[1:]])
        assert seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER) == [circuit]
        assert circuit.info_hash in swarms[1:]
        seeder.watch([WatchedSwarm(swarms[2], 1, True)])
        await until(lambda: circuit.circuit_id not in seeder.circuits and seeder.is_offered(swarms[2]), what="another")


@pytest.mark.usefixtures("engine")
@ENGINES_PYTHON_SLOW
async def test_an_introduction_point_can_ask_for_what_is_offered_there_alone():
    """Otherwise whoever is at a circuit's end could find out whether another swarm has the same seeder."""
    here, elsewhere = swarm(1), swarm(2)
    async with relays(4) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(here, 1, True), WatchedSwarm(elsewhere, 1, True)])
        await until(lambda: seeder.is_offered(here) and seeder.is_offered(elsewhere), what="both")
        (circuit_id,) = seeder.offers.circuits_of(here)
        (point,) = [node for node in nodes if any(known == here for _, known in node.intro_point_for.values())]
        (at_point,) = [at for at, known in point.intro_point_for.values() if known == here]
        for asked, circuits in ((elsewhere, 0), (here, 1)):
            key = seeder.swarms[asked].seeder_sk.pub().key_to_bin()
            point.tunnel_data(at_point, ("9.9.9.9", 9), CreateE2EPayload(1, asked, key, b"x" * 32))
            if not circuits:
                await until(lambda: seeder.dropped()["create_e2e_refused"] == 1)
            await until(lambda: len(seeder.find_circuits(CIRCUIT_TYPE_RP_SEEDER, state=None)) == circuits)  # noqa: B023
        assert circuit_id in seeder.circuits
