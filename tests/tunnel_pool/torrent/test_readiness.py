"""Tests when a session can reach peers: libtorrent has its association, and enough circuits are ready."""

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, Circuit, Hop
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_STREAMS
from tunnel_pool.rpc.sync import StreamsState
from tunnel_pool.torrent.sessions.readiness import ANSWER_S, GATHER_S, STEADY_S, STREAMS_S, Readiness


def circuit(*flags):
    """Return a circuit of one hop, whose exit has these peer flags."""
    made = Circuit(1, 1, CIRCUIT_TYPE_DATA)
    made.add_hop(Hop(Peer(default_eccrypto.generate_key("curve25519").pub()), flags=list(flags)))
    return made


class Way:
    """Stands in for the tunnels and the dispatcher; `wanted` circuits are wanted."""

    lane = Lane(2, 5)

    def __init__(self, wanted, is_associated=True):
        self.circuits = []
        self.is_associated = is_associated
        self._wanted = wanted

    def circuits_for_new_peers(self, hops, group):
        assert (hops, group) == self.lane
        return self.circuits

    def tunnels_ready(self, hops, group):
        return len(self.circuits) / self._wanted


BEGUN_S = 100.0
KNOWN_S = BEGUN_S + ANSWER_S


def way_and_readiness(wanted):
    """Return a Way and its Readiness: libtorrent is associated at BEGUN_S, and knows it at KNOWN_S."""
    way = Way(wanted)
    there = Readiness(way, way)
    assert not there.is_ready(BEGUN_S)
    return way, there


def test_all_that_are_wanted_are_enough_at_once():
    way, there = way_and_readiness(wanted=2)
    way.circuits = [circuit(), circuit()]
    assert there.is_ready(KNOWN_S)
    assert there.is_ready(KNOWN_S + 1)
    assert there.first_s == there.ready_s == KNOWN_S
    way.circuits.clear()
    assert not there.is_ready(KNOWN_S + 2)
    assert there.ready_s is None


def test_a_first_circuit_waits_a_moment_for_the_others():
    way, there = way_and_readiness(wanted=2)
    way.circuits = [circuit()]
    assert not there.is_ready(KNOWN_S)
    assert not there.is_ready(KNOWN_S + 0.9 * GATHER_S)
    assert there.is_ready(KNOWN_S + 1.1 * GATHER_S)
    way.circuits = [circuit(), circuit()]
    way.circuits.pop()  # one that dies later is not waited for
    assert there.is_ready(KNOWN_S + 1.1 * GATHER_S)


def test_it_begins_anew_when_all_are_gone():
    way, there = way_and_readiness(wanted=2)
    way.circuits = [circuit(), circuit()]
    assert there.is_ready(KNOWN_S)
    way.circuits = []
    assert not there.is_ready(KNOWN_S)
    assert there.first_s is None
    way.circuits = [circuit()]
    assert not there.is_ready(KNOWN_S + 10)


def test_libtorrent_must_have_had_its_association_and_know_it():
    way = Way(wanted=1, is_associated=False)
    there = Readiness(way, way)
    way.circuits = [circuit()]
    assert not there.is_ready(BEGUN_S - 10)
    assert not there.is_ready(BEGUN_S)
    way.is_associated = True
    assert not there.is_ready(BEGUN_S)
    assert there.is_ready(KNOWN_S)
    way.is_associated = False  # what runs goes on, and libtorrent opens another
    assert there.is_ready(KNOWN_S)


def test_a_circuit_finds_out_first_whether_its_exit_speaks_streams_but_not_for_long():
    way, there = way_and_readiness(wanted=1)
    way.circuits = [circuit(PEER_FLAG_EXIT_STREAMS)]
    assert not there.is_ready(KNOWN_S)
    assert not there.is_ready(KNOWN_S + 0.9 * STREAMS_S)
    assert there.is_ready(KNOWN_S + 1.1 * STREAMS_S)
    way, there = way_and_readiness(wanted=1)
    way.circuits = [circuit(PEER_FLAG_EXIT_STREAMS)]
    assert not there.is_ready(KNOWN_S)
    way.circuits[0].streams = StreamsState(are_spoken=True)
    assert there.is_ready(KNOWN_S)


def test_it_is_steady_once_it_was_ready_for_some_time():
    way = Way(wanted=1)
    readiness = Readiness(way, way)
    way.circuits.append(circuit())
    readiness.is_ready(BEGUN_S)
    assert readiness.is_ready(KNOWN_S)
    assert not readiness.is_steady(KNOWN_S + STEADY_S - 1)
    assert readiness.is_steady(KNOWN_S + STEADY_S)
    way.circuits.clear()
    assert not readiness.is_ready(KNOWN_S + STEADY_S)
    assert not readiness.is_steady(KNOWN_S + STEADY_S)
