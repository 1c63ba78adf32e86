import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import mutations
from tunnel_pool.socks5.address import ANY, AddressType, Socks5Address, encode_address
from tunnel_pool.socks5.handshake import Associate, Close, Connect, Handshake, Request, Send, State
from tunnel_pool.socks5.messages import ReplyCode, Secret

GREETING = b"\x05\x01\x00"
METHOD = Send(b"\x05\x00")
NO_ADDRESS = b"\x01\x00\x00\x00\x00\x00\x00"


def request(command, address=NO_ADDRESS):
    return bytes([5, command, 0]) + address


def converse(data, size=None):
    handshake = Handshake()
    pieces = [data] if size is None else [data[i : i + size] for i in range(0, len(data), size)]
    return handshake, [step for piece in pieces for step in handshake.receive(piece)]


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7])
def test_udp_associate_in_any_pieces(size):
    handshake, steps = converse(GREETING + request(3), size)
    assert steps == [METHOD, Associate(ANY)]
    assert handshake.state is State.ASSOCIATED
    assert handshake.associated("127.0.0.1", 258) == [Send(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x01\x02")]
    assert handshake.receive(b"whatever") == []


@pytest.mark.parametrize(
    "client",
    [
        Socks5Address(AddressType.IPV4, "127.0.0.1", 7),
        Socks5Address(AddressType.IPV6, "::1", 65535),
        Socks5Address(AddressType.DOMAIN, "localhost", 1),
    ],
)
def test_the_announced_client_is_passed_on(client):
    _, steps = converse(GREETING + request(3, encode_address(client.host, client.port)))
    assert steps[-1] == Associate(client)


@pytest.mark.parametrize("command", [2, 0, 4, 255])
def test_other_commands_are_not_supported(command):
    handshake, steps = converse(GREETING + request(command))
    assert steps[:2] == [METHOD, Send(b"\x05\x07\x00" + NO_ADDRESS)]
    assert isinstance(steps[2], Close)
    assert handshake.state is State.CLOSED


def test_unknown_address_type_is_answered_with_its_code():
    _, steps = converse(GREETING + b"\x05\x03\x00\x02")
    assert steps[1] == Send(b"\x05\x08\x00" + NO_ADDRESS)


@pytest.mark.parametrize("methods", [b"", b"\x02", b"\x01\x02\x80"])
def test_no_acceptable_method_is_two_bytes(methods):
    _, steps = converse(bytes([5, len(methods)]) + methods)
    assert steps[0] == Send(b"\x05\xff")
    assert isinstance(steps[1], Close)


def test_no_authentication_is_taken_among_others():
    assert converse(b"\x05\x03\x02\x01\x00")[1] == [METHOD]


@pytest.mark.parametrize("data", [b"\x04\x01\x00\x50", b"G", GREETING + b"\x04\x03\x00\x01"])
def test_another_version_is_turned_away(data):
    assert isinstance(converse(data)[1][-1], Close)


def test_an_association_that_fails_is_answered():
    handshake, _ = converse(GREETING + request(3))
    steps = handshake.failed("no port")
    assert steps[0] == Send(b"\x05\x01\x00" + NO_ADDRESS)
    assert isinstance(steps[1], Close)


@given(mutations(st.sampled_from([1, 2, 3]).map(lambda command: GREETING + request(command))), st.integers(1, 5))
def test_nothing_escapes_and_pieces_do_not_matter(data, size):
    whole, steps = converse(data)
    pieces, piecewise = converse(data, size)
    assert whole.state is pieces.state
    assert [s for s in steps if isinstance(s, Send)] == [s for s in piecewise if isinstance(s, Send)]


TRACKER = Socks5Address(AddressType.DOMAIN, "tracker.example", 6969)
CONNECT = GREETING + request(1, encode_address(TRACKER.host, TRACKER.port))
GET = b"GET /announce?x=1 HTTP/1.1\r\nHost: tracker.example\r\n\r\n"


@pytest.mark.parametrize("size", [None, 1, 5, 40])
def test_an_http_request_over_connect_in_any_pieces(size):
    handshake, steps = converse(CONNECT, size)
    assert steps == [METHOD, Connect(TRACKER)]
    assert handshake.connected() == [Send(b"\x05\x00\x00" + NO_ADDRESS)]
    pieces = [GET] if size is None else [GET[i : i + size] for i in range(0, len(GET), size)]
    assert [step for piece in pieces for step in handshake.receive(piece)] == [Request(TRACKER, GET)]
    assert handshake.state is State.CLOSED


def test_a_request_that_did_not_wait_for_the_answer_is_made_once_connected():
    handshake, steps = converse(CONNECT + GET)
    assert steps == [METHOD, Connect(TRACKER)]
    assert handshake.connected() == [Send(b"\x05\x00\x00" + NO_ADDRESS), Request(TRACKER, GET)]


def test_a_refused_connection_is_answered_with_its_code():
    handshake, _ = converse(CONNECT)
    steps = handshake.refused(ReplyCode.NETWORK_UNREACHABLE, "no exit")
    assert steps[0] == Send(b"\x05\x03\x00" + NO_ADDRESS)
    assert isinstance(steps[1], Close)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"POST / HTTP/1.1\r\n\r\n", GET + GET, b"GET /" + bytes(9000), GET + b"x"]
)
def test_what_is_no_single_get_request_ends_the_connection(data):
    handshake, _ = converse(CONNECT)
    handshake.connected()
    (step,) = handshake.receive(data)
    assert isinstance(step, Close)
    assert handshake.state is State.CLOSED


SECRET = Secret("user", "password")
ASKED_FOR = Send(b"\x05\x02")


def password(user=b"user", secret=b"password"):
    return bytes([1, len(user)]) + user + bytes([len(secret)]) + secret


@pytest.mark.parametrize("size", [None, 1, 2, 5])
def test_a_client_with_the_password_in_any_pieces(size):
    data = b"\x05\x02\x00\x02" + password() + request(3)
    handshake = Handshake(SECRET)
    steps = [
        step for start in range(0, len(data), size or 99) for step in handshake.receive(data[start:][: size or 99])
    ]
    assert steps == [ASKED_FOR, Send(b"\x01\x00"), Associate(ANY)]


@pytest.mark.parametrize(
    "given_", [password(b"other"), password(secret=b"passwore"), password(b"", b""), password(secret=b"")]
)
def test_a_client_with_another_password_is_disconnected(given_):
    handshake = Handshake(SECRET)
    steps = handshake.receive(b"\x05\x01\x02" + given_ + request(3))
    assert steps[:2] == [ASKED_FOR, Send(b"\x01\x01")]
    assert isinstance(steps[2], Close)
    assert len(steps) == 3
    assert handshake.receive(password() + request(3)) == []


def test_a_client_that_offers_no_password_is_turned_away():
    steps = Handshake(SECRET).receive(GREETING + request(3))
    assert steps[0] == Send(b"\x05\xff")
    assert isinstance(steps[1], Close)
    assert len(steps) == 2


@given(st.binary(max_size=600))
def test_no_password_upsets_it(data):
    steps = Handshake(SECRET).receive(b"\x05\x01\x02" + data)
    assert not any(isinstance(step, Associate | Connect) for step in steps)
