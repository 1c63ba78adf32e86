import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import mutations, outcome
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.calls import Answered, Called, ControlChannel, Failed, Notified
from tunnel_pool.rpc.errors import (
    BrokenStreamError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    RemoteError,
    TooManyCallsError,
)
from tunnel_pool.rpc.framing import Kind, encode


def pair():
    return ControlChannel(), ControlChannel()


def called(child, frame):
    (call,) = child.receive(frame)
    assert isinstance(call, Called)
    return call


def test_every_call_and_result_share_a_name():
    """The shared name matches a reply to its call; a difference shows a row missing from the tables."""
    assert {f.name for f in pb.Request.DESCRIPTOR.fields} == {f.name for f in pb.Reply.DESCRIPTOR.fields}


@pytest.mark.parametrize("name", [field.name for field in pb.Request.DESCRIPTOR.fields])
def test_call_and_reply(name):
    main, child = pair()
    message = getattr(pb.Request(), name)
    call = called(child, main.call(name, message, "token", now_s=0, timeout_s=1))
    assert (call.name, call.message) == (name, message)
    result = getattr(pb.Reply(), name)
    assert main.receive(child.reply(call.request_id, name, result)) == [Answered("token", result)]
    assert main.pending == 0


def test_errors_travel_as_codes():
    main, child = pair()
    call = called(child, main.call("heartbeat", pb.Heartbeat(), "token", 0, 1))
    (failed,) = main.receive(child.refuse(call.request_id, pb.ERROR_NOT_READY, "not yet"))
    assert failed.token == "token"
    assert isinstance(failed.error, RemoteError)
    assert failed.error.code == pb.ERROR_NOT_READY
    assert str(failed.error) == "ERROR_NOT_READY: not yet"


def test_a_code_from_a_newer_side_is_still_an_error():
    main, child = pair()
    call = called(child, main.call("heartbeat", pb.Heartbeat(), "token", 0, 1))
    (failed,) = main.receive(child.refuse(call.request_id, 99, "new"))
    assert "99" in str(failed.error)


def test_answers_may_come_in_any_order():
    main, child = pair()
    first = called(child, main.call("heartbeat", pb.Heartbeat(), 1, 0, 1))
    second = called(child, main.call("monitor", pb.Monitor(), 2, 0, 1))
    answers = child.reply(second.request_id, "monitor", pb.Monitored())
    answers += child.reply(first.request_id, "heartbeat", pb.HeartbeatReply())
    assert [answer.token for answer in main.receive(answers)] == [2, 1]


def test_time_outs_fail_once_and_late_answers_are_passed_over():
    main, child = pair()
    call = called(child, main.call("heartbeat", pb.Heartbeat(), "token", now_s=10, timeout_s=2))
    assert main.expire(11.9) == []
    (failed,) = main.expire(12)
    assert failed.token == "token"
    assert isinstance(failed.error, CallTimeoutError)
    assert main.expire(99) == []
    assert main.receive(child.reply(call.request_id, "heartbeat", pb.HeartbeatReply())) == []


def test_close_fails_every_pending_call_once_and_refuses_new_ones():
    main, _ = pair()
    for token in range(3):
        main.call("heartbeat", pb.Heartbeat(), token, 0, 1)
    failures = main.close("gone")
    assert [failure.token for failure in failures] == [0, 1, 2]
    assert all(isinstance(failure.error, ConnectionLostError) for failure in failures)
    assert main.close("again") == []
    with pytest.raises(ConnectionLostError, match="gone"):
        main.call("heartbeat", pb.Heartbeat(), 4, 0, 1)


def test_unanswered_calls_are_bounded():
    main = ControlChannel(max_pending=2)
    main.call("heartbeat", pb.Heartbeat(), 1, 0, 1)
    main.call("heartbeat", pb.Heartbeat(), 2, 0, 1)
    with pytest.raises(TooManyCallsError):
        main.call("heartbeat", pb.Heartbeat(), 3, 0, 1)
    assert main.pending == 2


def test_a_reply_of_another_kind_fails_the_call():
    main, child = pair()
    call = called(child, main.call("heartbeat", pb.Heartbeat(), "token", 0, 1))
    (failed,) = main.receive(child.reply(call.request_id, "monitor", pb.Monitored()))
    assert isinstance(failed, Failed)
    assert type(failed.error) is CallError


def test_events():
    main, child = pair()
    frame = child.send_event("notify", pb.Notify(text="hello"))
    assert main.receive(frame) == [Notified("notify", pb.Notify(text="hello"))]


def test_a_newer_main_and_an_older_child_understand_each_other():
    """Unknown calls have no name and can be refused; unknown fields and events are passed over."""
    unknown_field = b"\xfa\x3f\x01x"  # field 1023, length-delimited
    child = ControlChannel()
    (call,) = child.receive(encode(Kind.REQUEST, 5, unknown_field))
    assert (call.request_id, call.name) == (5, "")
    heartbeat = pb.Request(heartbeat=pb.Heartbeat()).SerializeToString()
    (call,) = child.receive(encode(Kind.REQUEST, 6, heartbeat + unknown_field))
    assert call.name == "heartbeat"
    assert child.receive(encode(Kind.EVENT, 0, unknown_field)) == []


def test_what_is_not_protobuf_breaks_the_stream():
    with pytest.raises(BrokenStreamError):
        ControlChannel().receive(encode(Kind.REPLY, 1, b"\xff\xff\xff"))


valid = st.sampled_from(
    [
        ControlChannel().call("create", pb.Create(slot=3, member_key=b"k" * 64), "t", 0, 1),
        ControlChannel().send_event("sync", pb.Sync(full=True, circuits=[pb.CircuitDelta(circuit_id=7)])),
        ControlChannel().refuse(1, pb.ERROR_UNKNOWN, "text"),
    ]
)


@given(mutations(valid))
def test_only_the_declared_error_escapes(data):
    outcome(lambda: ControlChannel().receive(data), BrokenStreamError)
