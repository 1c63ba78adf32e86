"""Tests HTTP requests through exits: which requests and answers may pass, whole and in pieces, from a real server."""

import asyncio
import gzip
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY

from tests.worlds.network import EXIT_FLAGS, address_of, make_config, network, tunnels, until
from tunnel_pool.overlay.ground.config import ExitFrom
from tunnel_pool.overlay.ground.exit_rules import ExitRules, network_ranges
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.requests.bencode import is_bencoded
from tunnel_pool.overlay.requests.http import (
    MAX_PARTS,
    MAX_REQUEST_BYTES,
    PART_BYTES,
    PEER_FLAG_EXIT_HTTP,
    HttpError,
    NoHttpExitError,
)
from tunnel_pool.overlay.requests.http_answers import MAX_RESPONSE_BYTES, PAGE_BYTES, read_whole
from tunnel_pool.overlay.requests.http_reading import read_response
from tunnel_pool.overlay.serving.http_exit import RefusedError

TRACKER_ANSWER = b"d8:intervali1800e5:peers6:\x01\x02\x03\x04\x05\x06e"
REQUEST = b"GET /announce?port=1 HTTP/1.1\r\n\r\n"


def may_pass(response):
    """Return whether an exit that read this to its end gives it back; what can't be read is refused."""
    try:
        return read_whole(response).may_pass()
    except ValueError:
        return False


def encoded(value):
    """Bencode a value (BEP 3)."""
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    if isinstance(value, list):
        return b"l" + b"".join(map(encoded, value)) + b"e"
    return b"d" + b"".join(encoded(key) + encoded(item) for key, item in sorted(value.items())) + b"e"


values = st.recursive(
    st.integers(-(10**9), 10**9) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.binary(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_what_is_bencoded_is_known_and_a_byte_more_or_less_is_not(value):
    data = encoded(value)
    assert is_bencoded(data)
    assert not is_bencoded(data[:-1])
    assert not is_bencoded(data + b"x")


@given(st.binary(max_size=200))
def test_no_bytes_upset_it(data):
    is_bencoded(data)
    may_pass(data)
    may_pass(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n" + data)


@pytest.mark.parametrize("data", [b"", b"i1", b"ie", b"5:abc", b"l" * 100 + b"e" * 100, b"<html>", b"99999999999:x"])
def test_what_is_not_bencoded(data):
    assert not is_bencoded(data)


def answer(body, *headers, status=b"200 OK"):
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", body])


def test_what_an_exit_gives_back():
    chunks = (
        b"5\r\n" + TRACKER_ANSWER[:5] + b"\r\n%x\r\n" % len(TRACKER_ANSWER[5:]) + TRACKER_ANSWER[5:] + b"\r\n0\r\n\r\n"
    )
    assert may_pass(answer(TRACKER_ANSWER))
    assert may_pass(answer(chunks, b"Transfer-Encoding: chunked"))
    assert may_pass(answer(gzip.compress(TRACKER_ANSWER), b"Content-Encoding: gzip"))
    assert may_pass(answer(TRACKER_ANSWER + b"\r\n", b"Content-Length: %d" % (len(TRACKER_ANSWER) + 2)))
    assert may_pass(answer(b"", b"Location: http://elsewhere/", status=b"302 Found"))
    assert not may_pass(answer(TRACKER_ANSWER + b"\r\nmore"))
    assert not may_pass(answer(b"<html></html>"))
    assert not may_pass(answer(gzip.compress(bytes(10 << 20)), b"Content-Encoding: gzip"))
    assert not may_pass(answer(bytes(PAGE_BYTES), status=b"302 Found"))
    assert not may_pass(TRACKER_ANSWER)


def test_a_redirection_carries_nothing_else():
    page = bytes(20 * PAGE_BYTES)
    moved, packed = {"status": b"302 Found"}, b"Content-Encoding: gzip"
    chunked = b"1;%s\r\nx\r\n0\r\n\r\n" % (b"e" * 2 * PAGE_BYTES)
    assert not may_pass(answer(page, packed, **moved))  # it can't be unpacked
    assert not may_pass(answer(gzip.compress(b"") + page, packed, **moved))
    assert not may_pass(answer(chunked, b"Transfer-Encoding: chunked", **moved))
    assert not may_pass(answer(b"", b"X: " + b"x" * 2 * PAGE_BYTES, **moved))
    assert may_pass(answer(gzip.compress(b"<html>Moved</html>"), packed, b"Location: http://elsewhere/", **moved))


async def serve(reader, writer, response):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(response)
    await writer.drain()
    writer.close()


async def server(response):
    started = await asyncio.start_server(lambda r, w: serve(r, w, response), "127.0.0.1", 0)
    return started, started.sockets[0].getsockname()


HTTP_FLAGS = EXIT_FLAGS | {PEER_FLAG_EXIT_HTTP}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("hops", [1, 2])
async def test_a_request_and_an_answer_of_many_cells(hops):
    body = encoded([bytes(PART_BYTES)] * 20)
    async with network(exits=0, relays=1) as nodes:
        exit_node = await open_overlay(make_config(HTTP_FLAGS, [address_of(nodes[0])], allow_private=True))
        tracker, address = await server(answer(body, b"Content-Length: %d" % len(body)))
        try:
            async with tracker, tunnels("plain", [address_of(exit_node), address_of(nodes[0])]) as client:
                await until(lambda: client.get_candidates(PEER_FLAG_EXIT_HTTP))
                await until(lambda: len(client.get_candidates(PEER_FLAG_RELAY)) == 2)
                response = await client.perform_http_request(("localhost", address[1]), REQUEST, hops)
                assert response.endswith(body)
                assert len(client.find_circuits("HTTP", hops=hops)) == 1
                assert (await client.perform_http_request(address, REQUEST, hops)).endswith(body)
                assert len(client.find_circuits("HTTP")) == 1
                # As of a tracker whose URL has long keys.
                longest = REQUEST.replace(b"?", b"?passkey=%s&" % (b"k" * 8000), 1)
                assert 8000 < len(longest) <= MAX_REQUEST_BYTES
                assert (await client.perform_http_request(address, longest, hops)).endswith(body)
        finally:
            await exit_node.unload()


async def test_more_requests_than_an_exit_takes_at_a_time_wait_for_their_turn():
    """libtorrent asks about 50 torrents at a time; an exit drops the sixth request of a circuit."""
    exit_node = await open_overlay(make_config(HTTP_FLAGS, allow_private=True))
    tracker, address = await server(answer(encoded([]), b"Content-Length: 2"))
    async with tracker, tunnels("plain", [address_of(exit_node)]) as client:
        await until(lambda: client.get_candidates(PEER_FLAG_EXIT_HTTP))
        await client.perform_http_request(address, REQUEST)
        answers = await asyncio.gather(*(client.perform_http_request(address, REQUEST) for _ in range(50)))
        assert {each[-2:] for each in answers} == {encoded([])}
        assert exit_node.counters["http_too_many_requests"] == 0
        assert not client.http._turns
    await exit_node.unload()


async def test_without_such_an_exit_there_is_none():
    async with network(exits=1) as nodes, tunnels("plain", [address_of(nodes[0])]) as client:
        await until(lambda: client.candidates)
        with pytest.raises(NoHttpExitError):
            await client.perform_http_request(("127.0.0.1", 1), REQUEST)
        with pytest.raises(HttpError, match="8192 are the most"):
            await client.perform_http_request(("127.0.0.1", 1), bytes(8193))


@pytest.mark.parametrize(
    ("response", "counter"), [(answer(b"<html></html>"), "http_answer_refused"), (b"nonsense", "http_answer_refused")]
)
async def test_an_exit_gives_nothing_else_back(response, counter):
    tracker, address = await server(response)
    async with tracker:
        exit_node = await open_overlay(make_config(HTTP_FLAGS, allow_private=True))
        try:
            async with tunnels("plain", [address_of(exit_node)]) as client:
                await until(lambda: client.get_candidates(PEER_FLAG_EXIT_HTTP))
                asked = asyncio.ensure_future(client.perform_http_request(address, REQUEST))
                await until(lambda: exit_node.dropped()[counter] == 1)
                asked.cancel()
        finally:
            await exit_node.unload()


async def test_an_exit_connects_to_no_private_address():
    tracker, address = await server(answer(TRACKER_ANSWER))
    async with tracker:
        exit_node = await open_overlay(make_config(HTTP_FLAGS))
        try:
            async with tunnels("plain", [address_of(exit_node)]) as client:
                await until(lambda: client.get_candidates(PEER_FLAG_EXIT_HTTP))
                asked = asyncio.ensure_future(client.perform_http_request(address, REQUEST))
                await until(lambda: exit_node.dropped()["exit_destination_refused"] == 1)
                asked.cancel()
        finally:
            await exit_node.unload()


async def requests_to(exit_node, targets):
    """Send a request to each target in turn, over one circuit; return how many were answered."""
    async with tunnels("plain", [address_of(exit_node)]) as client:
        await until(lambda: client.get_candidates(PEER_FLAG_EXIT_HTTP))
        answered = 0
        for target in targets:
            refused = exit_node.dropped().total()
            asked = asyncio.ensure_future(client.perform_http_request(target, REQUEST))
            await until(lambda: asked.done() or exit_node.dropped().total() > refused)  # noqa: B023
            answered += asked.done() and asked.exception() is None
            asked.cancel()
    return answered


async def test_requests_leave_from_where_datagrams_do():
    sources = []

    async def note(reader, writer):
        sources.append(writer.get_extra_info("peername"))
        await serve(reader, writer, answer(TRACKER_ANSWER))

    tracker = await asyncio.start_server(note, "127.0.0.1", 0)
    port = tracker.sockets[0].getsockname()[1]
    source = ExitFrom("127.0.0.77", (41000, 41003))
    async with tracker:
        exit_node = await open_overlay(make_config(HTTP_FLAGS, allow_private=True, exit_from=source))
        try:
            # More than there are ports: those of closed connections are used again. IPv6 would leave from elsewhere.
            assert await requests_to(exit_node, [("127.0.0.1", port)] * 6 + [("::1", port)]) == 6
            assert exit_node.dropped()["exit_destination_refused"] == 1
        finally:
            await exit_node.unload()
    assert {host for host, _ in sources} == {"127.0.0.77"}
    assert {port for _, port in sources} <= set(range(41000, 41004))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("rules", "counter"),
    [
        (ExitRules(max_destinations=2), "exit_too_many_destinations"),
        (ExitRules(denied=network_ranges([ipaddress.ip_network("127.0.0.3/32")])), "exit_network_denied"),
    ],
)
async def test_the_rules_hold_for_requests(rules, counter):
    tracker = await asyncio.start_server(lambda r, w: serve(r, w, answer(TRACKER_ANSWER)), "0.0.0.0", 0)
    port = tracker.sockets[0].getsockname()[1]
    async with tracker:
        exit_node = await open_overlay(make_config(HTTP_FLAGS, allow_private=True, exit_rules=rules))
        try:
            assert await requests_to(exit_node, [(f"127.0.0.{number}", port) for number in (1, 2, 3)]) == 2
            assert exit_node.dropped()[counter] == 1
        finally:
            await exit_node.unload()


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\nPOST /x HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nMAIL FROM\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nQUIT\r\n\r\n",
        b"GET /\r\n\r\n",
    ],
)
async def test_an_exit_makes_one_get_request_and_says_nothing_else(request_):
    tracker, address = await server(answer(TRACKER_ANSWER))
    async with tracker:
        exit_node = await open_overlay(make_config(HTTP_FLAGS, allow_private=True))
        try:
            with pytest.raises(RefusedError, match="http_request_refused"):
                await exit_node.http_exit.fetch(None, address, request_)
        finally:
            await exit_node.unload()


def connection(*pieces, closed=False):
    stream = asyncio.StreamReader()
    for piece in pieces:
        stream.feed_data(piece)
    if closed:
        stream.feed_eof()
    return stream


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"5\r\nd1:a1\r\n3\r\n:be\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("whole", "closed"),
    [
        (CHUNKED, False),
        (answer(b"de", b"Content-Length: 2"), False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"de", b"Content-Length: 2"), False),
        (answer(b"de"), True),
        (b"HTTP/1.0 200\r\n\r\nde", True),
    ],
)
async def test_an_answer_is_read_to_its_end_and_no_further(whole, closed):
    more = b"" if closed else b"HTTP/1.1 200 OK\r\n"
    assert (await read_response(connection(whole + more, closed=closed))).raw() == whole
    assert may_pass(whole)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([CHUNKED_HEAD, b"1\r\nx\r\n" * 2000], "too many chunks"),
        ([CHUNKED_HEAD, b"ffffff\r\n", bytes(MAX_RESPONSE_BYTES)], "too large"),
        ([CHUNKED_HEAD, b"-1\r\n"], "not an HTTP response"),
        ([CHUNKED_HEAD, b"zz\r\n"], "not an HTTP response"),
        ([CHUNKED[:-5]], "not an HTTP response"),
        ([answer(b"d", b"Content-Length: 2")], "not an HTTP response"),
        ([b"HTTP/1.1 200 OK\r\nA: " + bytes([120]) * (20 << 10)], "not an HTTP response"),
        ([b"HTTP/1.1 200 OK\r\n" + b"a:\n" * (10 << 10)], "not an HTTP response|head too large"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" * 100], "does not come to an end"),
        ([b"HTTP/1.1 200 OK\r\n"], "not an HTTP response"),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n", bytes(MAX_RESPONSE_BYTES)], "not an HTTP response|too large"),
        ([], "not an HTTP response"),
    ],
)
async def test_an_answer_that_is_none_or_has_no_end_is_refused(pieces, why):
    with pytest.raises(ValueError, match=why):
        await read_response(connection(*pieces, closed=True))


async def test_a_dht_node_is_an_address_never_a_name():
    async with network(exits=1) as nodes, tunnels("plain", [address_of(nodes[0])]) as client:
        await until(lambda: client.get_candidates(2))
        circuit = client.create_circuit(1)
        assert await circuit.ready
        answered = asyncio.get_running_loop().create_future()
        client.dht_names._asked[circuit.circuit_id] = b"aaaa", answered
        answer_ = b"d1:rd2:id20:" + bytes(20) + b"e1:t4:aaaa1:y1:re"
        for origin in [("leak.example", 80), ("10.0.0.1", 80), ("127.0.0.1", 80)]:
            client.dht_names.answered(circuit, origin, answer_)
        assert not answered.done()
        assert client.dropped()["circuit_datagram_refused"] == 3
        client.dht_names.answered(circuit, ("9.9.9.9", 80), answer_)
        assert answered.result() == ("9.9.9.9", 80)


def test_pieces_that_do_not_belong_together_are_passed_over():
    from tunnel_pool.overlay.requests.http import HttpRequestCache

    cache = HttpRequestCache.__new__(HttpRequestCache)
    cache._parts, cache._total = {}, 0
    assert not cache.add(1, 2, b"b")
    assert not cache.add(5, 2, b"x")
    assert not cache.add(0, 3, b"x")
    assert not cache.add(0, MAX_PARTS + 1, b"x")
    assert cache.add(0, 2, b"a")
    assert cache.answer() == b"ab"
