"""Tests callers by TCP: the torrent for which libtorrent connects to each, and when it forgets them."""

from types import SimpleNamespace

import libtorrent as lt
import pytest
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, CIRCUIT_TYPE_RP_SEEDER

from tests.tunnel_pool.torrent.test_dispatch import Tunnels
from tests.worlds.network import until, unused_host
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.end_to_end import address_of_number, drawn_number, known_as, steering_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import Guest, that_reach
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.sync import StreamsState
from tunnel_pool.socks5.address import AddressType, Socks5Address
from tunnel_pool.socks5.messages import ReplyCode
from tunnel_pool.torrent.metainfo import make_torrent
from tunnel_pool.torrent.sessions import libtorrent_session
from tunnel_pool.torrent.sessions.dispatch import STRANGERS_AT_ONCE, Dispatcher, connect
from tunnel_pool.torrent.sessions.libtorrent_session import LibtorrentSession
from tunnel_pool.torrent.sessions.session_settings import anonymous_settings
from tunnel_pool.torrent.sessions.transport_control import LaneKinds, TransportControl

INFOHASH = bytes(range(20))
CALLER = 8 << 24  # 8.0.0.0


def guest(circuit, number):
    return Guest(circuit, number, INFOHASH)


def to(number):
    return Socks5Address(AddressType.IPV4, *address_of_number(number))


def speaking(tunnels):
    for circuit in tunnels.circuits.values():
        circuit.streams = StreamsState(are_spoken=True)
    return tunnels.circuits.values()


def test_the_address_of_a_caller_leads_to_the_child_of_his_circuit_and_to_no_other():
    tunnels = Tunnels()
    circuits = speaking(tunnels)
    for circuit in circuits:
        number = drawn_number(Lane(1), slot_of(circuit.circuit_id))
        assert that_reach(circuits, Lane(1), to(number)) == [circuit]
        assert that_reach(circuits, Lane(2), to(number)) == []
    assert that_reach(circuits, Lane(1), to(drawn_number(Lane(1), 2))) == []


def test_an_address_of_a_linked_circuit_leads_there_alone():
    tunnels = Tunnels()
    circuits = speaking(tunnels)
    linked = tunnels.circuits[5]
    linked.ctype = CIRCUIT_TYPE_RP_SEEDER
    assert that_reach(circuits, Lane(1), to(known_as(linked))) == [linked]
    other = drawn_number(Lane(1), 1)
    assert steering_of(Lane(1)).slot_of(other) == 1
    assert all(circuit.ctype == CIRCUIT_TYPE_DATA for circuit in that_reach(circuits, Lane(1), to(other)))


async def test_callers_are_let_in_so_many_a_second_and_guests_of_hidden_swarms_always():
    tunnels, came = Tunnels(), []
    dispatcher = Dispatcher(tunnels, Lane(1))
    dispatcher.on_guest = lambda guest: came.append(guest) or guest.known_as != 0
    connect(tunnels, [dispatcher])
    circuit = tunnels.circuits[5]
    for number in range(100):
        tunnels.on_guest(guest(circuit, number))
    let_in = len(came)
    assert STRANGERS_AT_ONCE <= let_in < STRANGERS_AT_ONCE + 5
    assert dispatcher.drops[DropReason.STRANGERS_TOO_FAST] == 100 - let_in
    assert len(tunnels.refused) == 100 - let_in + 1, "those for whom there is no torrent are told so, too"
    tunnels.on_guest(Guest(circuit, circuit.circuit_id))
    assert len(came) == let_in + 1


async def test_an_address_that_stands_for_nobody_any_more_is_no_trackers():
    dispatcher = Dispatcher(Tunnels(), Lane(1))
    code, why = dispatcher.why_no_connection(to(77))
    assert code is ReplyCode.HOST_UNREACHABLE
    assert "gone" in why


class Torrent(SimpleNamespace):
    peers = frozenset()
    peer_count = 0
    is_finished = False


@pytest.fixture
def torrents(tmp_path):
    """Yield a session whose proxy is nobody, and two torrents of it."""
    session = LibtorrentSession(anonymous_settings(9))
    for number in range(2):
        (tmp_path / f"file{number}").write_bytes(bytes([number]) * 100_000)
        parameters = lt.load_torrent_buffer(
            make_torrent(tmp_path / f"file{number}", lambda done, all_: None, hybrid=True)
        )
        parameters.save_path = str(tmp_path / unused_host())
        handle = session._session.add_torrent(parameters)
        session._torrents[handle] = Torrent(handle=handle)
    yield session, list(session._torrents)
    session._torrents.clear()
    del session._session


def known_peers(handle):
    return handle.status().list_peers


async def test_a_caller_is_for_the_torrent_that_he_asks_for(torrents):
    session, (one, other) = torrents
    for number, infohash in enumerate((one.info_hashes().v1.to_bytes(), one.info_hashes().v2.to_bytes()[:20])):
        assert session.connect_to_caller(address_of_number(CALLER + number), infohash)
    assert not session.connect_to_caller(address_of_number(CALLER + 9), INFOHASH)
    await until(lambda: known_peers(one) == 2, what="both callers")
    assert known_peers(other) == 0


async def test_callers_that_are_gone_are_forgotten_and_other_peers_are_not(torrents, monkeypatch):
    session, (one, _) = torrents
    infohash = one.info_hashes().v1.to_bytes()
    one.connect_peer(("192.0.2.1", 6881))
    for number in range(libtorrent_session.MANY_CALLERS):
        session.connect_to_caller(address_of_number(CALLER + number), infohash)
    await until(lambda: known_peers(one) == libtorrent_session.MANY_CALLERS + 1, what="all callers")
    session.connect_to_caller(address_of_number(CALLER + 100), infohash)
    await until(lambda: known_peers(one) == libtorrent_session.MANY_CALLERS + 2, what="those who may be connecting")
    monkeypatch.setattr(libtorrent_session, "CALLER_CONNECTS_S", 0.0)
    session.connect_to_caller(address_of_number(CALLER + 101), infohash)
    await until(lambda: known_peers(one) == 2, what="the newest, and the peer that is no caller")


async def test_the_session_is_told_of_callers_by_torrent_and_of_other_guests_by_swarm():
    tunnels, told = Tunnels(), []
    circuit = tunnels.circuits[5]
    circuit.info_hash = b"a hidden swarm's name"
    session = SimpleNamespace(
        is_lonely=False,
        set_transport=lambda transport: None,
        connect_to_end=lambda *end: told.append(("end", *end)),
        connect_to_caller=lambda *caller: told.append(("caller", *caller)) or caller[1] != INFOHASH,
    )
    control = TransportControl(tunnels, Lane(1), session, LaneKinds(tunnels))
    assert control.guest_came(Guest(circuit, 5))
    assert not control.guest_came(guest(circuit, 77))
    assert told == [
        ("end", address_of_number(5), b"a hidden swarm's name"),
        ("caller", address_of_number(77), INFOHASH),
    ]
