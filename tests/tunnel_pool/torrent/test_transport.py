"""Tests the choice between TCP, by streams, and uTP for connections to peers."""

from types import SimpleNamespace

from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA

from tests.tunnel_pool.torrent.test_dispatch import Tunnels
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.rpc.sync import StreamsState
from tunnel_pool.torrent.sessions.transport import LONELY_S, TRIED_S, UTP_ALONE, Transport, TransportChoice, Ways
from tunnel_pool.torrent.sessions.transport_control import AT_ONCE_S, LaneKinds, TransportControl

NOW_S = 1000.0
TCP_ALONE = Transport(tcp=True, utp=False)
BOTH = Transport(tcp=True, utp=True)
ALL = Transport(tcp=True, utp=True, encrypted=True)


def chosen(**ways):
    return TransportChoice().choose(NOW_S, Ways(**ways), is_lonely=False)


def test_without_streams_it_is_utp():
    assert chosen() == UTP_ALONE
    assert chosen(to_silent_exits=True, to_silent_ends=True) == UTP_ALONE


def test_where_an_exit_carries_streams_it_is_tcp():
    assert chosen(to_exits=True) == TCP_ALONE
    assert chosen(to_exits=True, to_silent_exits=True) == TCP_ALONE


def test_other_ends_without_streams_are_met_by_utp_and_those_with_by_tcp():
    assert chosen(to_exits=True, to_silent_ends=True) == BOTH
    assert chosen(to_ends=True) == TCP_ALONE
    assert chosen(to_ends=True, to_silent_exits=True) == BOTH


def test_a_torrent_that_finds_nobody_tries_utp_and_encryption_less_and_less_often():
    choice = TransportChoice()

    def at(seconds, *, is_lonely=True):
        return choice.choose(NOW_S + seconds, Ways(to_exits=True), is_lonely=is_lonely)

    begin_s = 0.0
    for wait_s in (*LONELY_S, LONELY_S[-1], LONELY_S[-1]):
        assert at(begin_s) == at(begin_s + wait_s - 1) == TCP_ALONE
        assert at(begin_s + wait_s) == at(begin_s + wait_s + TRIED_S - 1) == ALL
        begin_s += wait_s + TRIED_S
    assert at(begin_s + LONELY_S[-1]).utp
    assert at(begin_s + LONELY_S[-1] + 1, is_lonely=False) == TCP_ALONE
    assert at(begin_s + LONELY_S[-1] + 2) == TCP_ALONE


def test_a_session_that_becomes_ready_looks_at_the_circuits_anew_and_others_then_use_that_look():
    """A peer that is met by uTP keeps to it, so a look from before the circuits spoke streams must not decide."""
    tunnels = Tunnels()
    kinds = LaneKinds(tunnels)
    chosen = []
    session = SimpleNamespace(is_lonely=False, set_transport=chosen.append)
    control = TransportControl(tunnels, Lane(1), session, kinds)
    assert kinds.of(Lane(1), NOW_S) == {(CIRCUIT_TYPE_DATA, False)}

    for circuit in tunnels.circuits.values():
        circuit.streams = StreamsState(are_spoken=True)
    soon_s = NOW_S + AT_ONCE_S / 2
    assert kinds.of(Lane(1), soon_s, within_s=AT_ONCE_S) == {(CIRCUIT_TYPE_DATA, False)}
    control.choose(soon_s, since_s=soon_s)
    assert chosen == [TCP_ALONE]

    tunnels.circuits.clear()
    control.choose(soon_s + AT_ONCE_S / 2, since_s=soon_s)
    assert chosen == [TCP_ALONE]
    control.choose(soon_s + 2 * AT_ONCE_S, since_s=soon_s)
    assert chosen == [TCP_ALONE, UTP_ALONE]
