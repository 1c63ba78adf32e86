from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.rpc.sync import CarriedState, CircuitState, PeerState, Snapshot, StreamsState, SyncEncoder, SyncState

HOP = PeerState(b"key", "127.0.0.1", 1, (1, 2))
CIRCUIT = CircuitState(7, goal_hops=2, ctype="DATA", hops=(HOP,), unverified_hop=HOP, creation_time=1.5)
CANDIDATE = PeerState(b"key", "127.0.0.1", 1, (1,))

hops = st.builds(PeerState, st.binary(min_size=1, max_size=4), st.just("1.2.3.4"), st.integers(0, 9), st.just((1,)))
circuits = st.builds(
    CircuitState,
    circuit_id=st.integers(0, 3),
    goal_hops=st.integers(0, 3),
    ctype=st.sampled_from(["", "DATA"]),
    hops=st.lists(hops, max_size=3).map(tuple),
    unverified_hop=st.none() | hops,
    closing=st.booleans(),
    bytes_up=st.integers(0, 2**64 - 1),
    bytes_down=st.integers(0, 2**64 - 1),
    creation_time=st.sampled_from([0.0, 1.5]),
    last_activity=st.sampled_from([0.0, 1.5]),
    infohash=st.binary(max_size=3),
    e2e=st.booleans(),
    group=st.integers(0, 9),
    detour=st.integers(0, 3),
    known_as=st.integers(0, 2**32 - 1),
    streams=st.builds(
        StreamsState, st.booleans(), st.integers(0, 9), st.integers(0, 9), round_trip_s=st.sampled_from([0.0, 1.5])
    ),
)
snapshots = st.builds(
    Snapshot,
    circuits=st.lists(circuits, max_size=4).map(lambda some: {c.circuit_id: c for c in some}),
    candidates=st.dictionaries(st.binary(min_size=1, max_size=2), st.just(None), max_size=3).map(
        lambda keys: {key: PeerState(key, "1.2.3.4", 5, (2,)) for key in keys}
    ),
    counters=st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
    carried=st.builds(CarriedState, *[st.integers(0, 2)] * len(CarriedState._fields)),
)


@given(st.lists(snapshots, min_size=1, max_size=6))
def test_the_picture_follows_the_snapshots(some):
    encoder, state = SyncEncoder(), SyncState()
    known = set()
    for snapshot in some:
        for circuit_id in known - set(snapshot.circuits):
            state.forget(circuit_id)  # what RPC_CIRDEAD does
        frame = encoder.encode(snapshot)
        if frame is not None:
            state.apply(frame)
        known = set(snapshot.circuits)
        assert state.circuits == dict(snapshot.circuits)
        assert state.candidates == dict(snapshot.candidates)
        assert state.carried == snapshot.carried
        assert state.counters.items() >= snapshot.counters.items()


def test_only_changed_fields_travel():
    encoder = SyncEncoder()
    first = encoder.encode(Snapshot({7: CIRCUIT}, {b"key": CANDIDATE}))
    assert first.full
    assert first.circuits[0].ctype == "DATA"
    second = encoder.encode(Snapshot({7: CIRCUIT._replace(bytes_up=5)}, {b"key": CANDIDATE}))
    assert not second.full
    assert [field.name for field, _ in second.circuits[0].ListFields()] == ["circuit_id", "bytes_up"]
    assert not second.candidates


def test_nothing_is_sent_when_nothing_changed():
    encoder = SyncEncoder()
    encoder.encode(Snapshot({7: CIRCUIT}))
    assert encoder.encode(Snapshot({7: CIRCUIT})) is None


def test_apply_names_the_changed_circuits():
    encoder, state = SyncEncoder(), SyncState()
    other = CIRCUIT._replace(circuit_id=8)
    assert state.apply(encoder.encode(Snapshot({7: CIRCUIT, 8: other}))) == [7, 8]
    assert state.apply(encoder.encode(Snapshot({7: CIRCUIT, 8: other._replace(closing=True)}))) == [8]


def test_a_full_frame_forgets_what_was_known():
    state = SyncState()
    state.apply(SyncEncoder().encode(Snapshot({7: CIRCUIT}, counters={"a": 1})))
    state.apply(SyncEncoder().encode(Snapshot({9: CIRCUIT._replace(circuit_id=9)})))
    assert list(state.circuits) == [9]
    assert state.counters == {}
