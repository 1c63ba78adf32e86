"""Tests that each codec decodes its own encoding, and that all codecs get the same messages."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.gumby_experiments.codecs import CODECS, SCHEMA, Field, codec
from tunnel_pool.gumby_experiments.messages import KINDS, MAKERS, MIXES, mixed
from tunnel_pool.rpc import control_pb2 as pb

VALUES = {
    "u32": st.integers(0, 2**32 - 1), "u64": st.integers(0, 2**64 - 1), "bool": st.booleans(),
    "f64": st.floats(allow_nan=False, allow_infinity=False), "bytes": st.binary(max_size=80),
    "text": st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20),
}  # fmt: skip


def values_of(message):
    def of_field(field: Field):
        one = values_of(field.kind) if field.kind in SCHEMA else VALUES[field.kind]
        return st.lists(one, max_size=3) if field.repeated else one

    return st.fixed_dictionaries({field.name: of_field(field) for field in SCHEMA[message]})


@pytest.mark.parametrize("format_name", CODECS)
@pytest.mark.parametrize("message", ["sync", "build", "dead", "channelcast", "vote", "heartbeat"])
def test_what_is_encoded_is_decoded(format_name, message):
    both = codec(format_name, message)

    @given(values_of(message))
    def comes_back(values):
        assert both.decode(both.encode(values)) == values

    comes_back()


def test_a_struct_is_laid_out_as_it_says():
    encoded = codec("struct", "build").encode({"id": 7, "goal": 2, "ctype": "DATA", "flags": [1, 2]})
    assert encoded == struct.pack("!IIH4sHII", 7, 2, 4, b"DATA", 2, 1, 2)


def test_control_messages_are_as_long_as_the_real_ones():
    """The experiment's messages have fields of those in rpc/control.proto, so their encodings are equally long."""
    values = MAKERS["build"](random.Random(1))
    real = pb.BuildCircuit(circuit_id=values["id"], goal_hops=3, ctype="DATA", exit_flags=[8]).SerializeToString()
    assert len(codec("protobuf", "build").encode(values)) == len(real)
    values = MAKERS["dead"](random.Random(1))
    real = pb.CircuitDead(circuit_id=values["id"], reason=values["reason"]).SerializeToString()
    assert len(codec("protobuf", "dead").encode(values)) == len(real)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_is_the_seeds_and_has_what_it_says(mix):
    messages = mixed(mix, 5)
    assert messages == mixed(mix, 5)
    assert messages != mixed(mix, 6)
    for name, share in MIXES[mix].items():
        assert sum(each == name for each, _ in messages) == share * len(messages) / 100
        assert name in KINDS
    assert sum(MIXES[mix].values()) == 100
