"""Tests the operator's rules of an exit: real datagrams through a real exit, on both engines."""

import asyncio
import ipaddress
import logging
import socket
import threading
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ipv8.messaging.anonymization import payload as payloads
from ipv8.messaging.interfaces.udp.endpoint import DomainAddress

from tests.worlds.network import EXIT_FLAGS, address_of, make_config, until, unused_host
from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.ground.exit_rules import (
    NO_RULES,
    Contacts,
    ExitRules,
    Protocol,
    Ranges,
    could_be_any_of,
    network_ranges,
)
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP
from tunnel_pool.overlay.serving.resolver import MAX_RESOLVING
from tunnel_pool.overlay.serving.serving import MAX_TEST_BYTES
from tunnel_pool.packet_engine import EngineChoice

NOWHERE = ("0.0.0.0", 0)
DHT = b"d1:qe"
UTP = bytes([0x41, 0]) + b"\xff" * 18  # no tracker's, at least
TRACKER = (0x41727101980).to_bytes(8, "big") + bytes(8)
OVERLAY = bytes([0, 2]) + bytes(range(30, 60))
JUNK = b"\xff" * 40
CONTENTS = {Protocol.DHT: DHT, Protocol.BITTORRENT: UTP, Protocol.UDP_TRACKERS: TRACKER, Protocol.IPV8: OVERLAY}


class Sink:
    """A destination that notes which datagrams arrive."""

    def __init__(self, host, port=0):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((host, port))
        self.sock.setblocking(False)
        self.address = self.sock.getsockname()

    def count(self):
        number = 0
        try:
            while True:
                self.sock.recv(2000)
                number += 1
        except BlockingIOError:
            return number


class World:
    """A client with one circuit to an exit with rules."""

    def __init__(self, exit_node, client):
        self.exit_node, self.client = exit_node, client
        (self.circuit,) = client.find_circuits(hops=1)

    def send(self, to, data):
        self.client.send_data(self.circuit.hop.address, self.circuit.circuit_id, to, NOWHERE, data)

    def dropped(self):
        self.exit_node.crypto_endpoint.update_statistics()
        return self.exit_node.dropped()

    def refused(self):
        return Counter({why: number for why, number in self.dropped().items() if why.startswith("exit_")})

    def exited_bytes(self):
        self.exit_node.crypto_endpoint.update_statistics()
        return sum(exit_socket.bytes_up for exit_socket in self.exit_node.exit_sockets.values())

    async def refused_as(self, reason, number=1):
        await until(lambda: self.dropped()[reason] >= number, 5, reason)
        assert self.dropped()[reason] == number


async def world_of(rules, allow_private=True, flags=EXIT_FLAGS):
    exit_node = await open_overlay(make_config(flags, allow_private=allow_private, exit_rules=rules))
    client = await open_overlay(make_config(frozenset(), [address_of(exit_node)]))
    client.settings.max_circuits = 1
    client.build_tunnels(1)
    await until(lambda: client.find_circuits(hops=1))
    return World(exit_node, client)


async def close(world):
    await world.client.unload()
    await world.exit_node.unload()


@pytest.mark.parametrize("protocol", CONTENTS)
async def test_a_protocol_leaves_that_is_named_and_no_other(engine, protocol):
    sink = Sink(unused_host())
    world = await world_of(ExitRules(protocols=protocol))
    for content in [*CONTENTS.values(), JUNK]:
        world.send(sink.address, content)
    await world.refused_as("exit_content_refused", len(CONTENTS))
    await until(lambda: sink.count() == 1)
    await close(world)
    sink.sock.close()


async def test_networks_and_ports_are_refused_each_under_its_name(engine):
    open_host, closed_host = unused_host(), unused_host()
    sink = Sink(open_host)
    port = sink.address[1]
    rules = ExitRules(
        denied=network_ranges([ipaddress.ip_network(closed_host)]),
        allowed=network_ranges([ipaddress.ip_network("127.0.0.0/8")]),
        denied_ports=Ranges.joined([(25, 25)]),
        allowed_ports=Ranges.joined([(1, 100), (port, port)]),
    )
    world = await world_of(rules)
    world.send((open_host, port), DHT)
    world.send((closed_host, port), DHT)
    world.send(("10.0.0.1", port), DHT)
    world.send((open_host, 25), DHT)
    world.send((open_host, 101), DHT)
    await world.refused_as("exit_network_denied", 2)
    await world.refused_as("exit_port_denied", 2)
    await until(lambda: sink.count() == 1)
    await close(world)
    sink.sock.close()


HOSTS = [unused_host() for _ in range(3)]
NETWORKS = [*HOSTS, "127.0.0.0/8", "10.0.0.0/8", "0.0.0.0/0"]
networks = st.lists(st.sampled_from(NETWORKS), max_size=3).map(
    lambda texts: network_ranges(ipaddress.ip_network(text) for text in texts)
)
ports = st.sampled_from([0, 1, 1000, 2000, 0xFFFF]) | st.integers(0, 0xFFFF)
port_ranges = st.lists(st.tuples(ports, ports).map(sorted).map(tuple), max_size=3).map(Ranges.joined)
any_rules = st.builds(
    ExitRules,
    protocols=st.just(15).map(Protocol) | st.integers(0, 15).map(Protocol),
    denied=networks,
    allowed=st.none() | networks,
    denied_ports=port_ranges,
    allowed_ports=st.none() | port_ranges,
)
ONE_OF_EACH = (
    ExitRules(
        protocols=Protocol.DHT,
        denied=network_ranges([ipaddress.ip_network(HOSTS[0])]),
        denied_ports=Ranges.joined([(1000, 2000)]),
    ),
    [("224.0.0.1", 9, DHT), (HOSTS[0], 9, DHT), (HOSTS[1], 1500, DHT), (HOSTS[1], 9, UTP), (HOSTS[1], 9, DHT)],
)
known = st.sampled_from([*CONTENTS.values(), JUNK])
cut_or_changed = st.builds(
    lambda data, at, byte: data[:at] + bytes([byte]) * (byte > 9) + data[at + 1 :],
    known,
    st.integers(0, 40),
    st.integers(0, 255),
)
datagrams = st.lists(
    st.tuples(
        st.sampled_from([*HOSTS, "10.1.2.3", "224.0.0.1", "0.0.0.0"]),
        ports,
        known | cut_or_changed | st.binary(max_size=60),
    ),
    min_size=1,
    max_size=20,
)


def test_any_destinations_ports_and_contents_leave_exactly_by_the_rules(engine, loop):
    """Other addresses than loopback are used only where they are refused: nothing leaves this machine."""
    world = loop.run_until_complete(world_of(ExitRules()))
    seen = Counter()

    @settings(max_examples=60, deadline=None)
    @given(any_rules, datagrams)
    @example(*ONE_OF_EACH)
    def check(rules, sent):
        sent = [(host, port, data) for host, port, data in sent if host in HOSTS or not leaves(rules, host, port)]
        world.exit_node.set_exit_rules(rules)
        seen.update(loop.run_until_complete(sent_and_judged(world, rules, sent)))

    try:
        check()
    finally:
        loop.run_until_complete(close(world))
    reasons = {None, "exit_destination_refused", "exit_network_denied", "exit_port_denied", "exit_content_refused"}
    assert reasons == set(seen)


def leaves(rules, host, port):
    return is_allowed_destination(host, port, True) and rules.destination_refusal(host, port) is None


async def sent_and_judged(world, rules, sent):
    """Send the datagrams, check the exit's counts, and return the count of each reason, None for what leaves."""
    before, bytes_before = world.refused(), world.exited_bytes()
    for host, port, data in sent:
        world.send((host, port), data)
    expected = Counter(refusal(rules, host, port, data) for host, port, data in sent)
    leaving = sum(len(data) for host, port, data in sent if refusal(rules, host, port, data) is None)

    def is_judged():
        refused = world.refused().total() - before.total()
        return refused + expected[None] == len(sent) and world.exited_bytes() - bytes_before == leaving

    await until(is_judged, 5, f"{expected} under {rules}, not {world.refused() - before}")
    assert world.refused() - before == Counter({why: number for why, number in expected.items() if why is not None})
    return expected


def refusal(rules, host, port, data):
    if not is_allowed_destination(host, port, True):
        return "exit_destination_refused"
    if (why := rules.destination_refusal(host, port)) is not None:
        return why
    return None if could_be_any_of(rules.protocols, data) else "exit_content_refused"


async def test_private_addresses_are_refused_whatever_the_rules_allow(engine):
    sink = Sink(unused_host())
    rules = ExitRules(allowed=network_ranges([ipaddress.ip_network("127.0.0.0/8")]))
    world = await world_of(rules, allow_private=False)
    world.send(sink.address, DHT)
    await world.refused_as("exit_destination_refused")
    assert sink.count() == 0
    await close(world)
    sink.sock.close()


async def test_a_destination_that_never_answers_gets_so_many(engine):
    silent, answering = Sink(unused_host()), Sink(unused_host())
    world = await world_of(ExitRules(max_unanswered=3))
    for _ in range(4):
        world.send(silent.address, DHT)
    world.send((silent.address[0], 9), DHT)  # whoever floods an address can choose the port
    await world.refused_as("exit_unanswered", 2)
    await until(lambda: silent.count() == 3)
    world.send(answering.address, DHT)
    loop = asyncio.get_running_loop()
    answers = []
    world.client.on_raw_data = lambda circuit, origin, data: answers.append(data)
    _, source = await asyncio.wait_for(loop.sock_recvfrom(answering.sock, 2000), 5)
    answering.sock.sendto(DHT, source)
    await until(lambda: answers)
    for _ in range(9):
        world.send(answering.address, DHT)
    total = 0

    def all_came():
        nonlocal total
        total += answering.count()
        return total == 9

    await until(all_came)
    await world.refused_as("exit_unanswered", 2)
    await close(world)
    silent.sock.close()
    answering.sock.close()


@pytest.mark.parametrize("inbound", [True, False])
async def test_strangers_reach_a_circuit_that_is_announced_if_the_operator_lets_them(engine, inbound):
    asked, stranger = Sink(unused_host()), Sink(unused_host())
    world = await world_of(ExitRules(inbound_per_s=3 if inbound else None))
    came = []
    world.client.on_raw_data = lambda circuit, origin, data: came.append((origin, data))
    loop = asyncio.get_running_loop()
    for announce, letters_in in ((DHT, False), (b"d1:q13:announce_peere", inbound)):
        world.send(asked.address, announce)
        _, exit_address = await asyncio.wait_for(loop.sock_recvfrom(asked.sock, 2000), 5)
        before = world.dropped()["exit_stranger"]
        for _ in range(20):
            stranger.sock.sendto(DHT, exit_address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another_port:
            another_port.bind((asked.address[0], 0))
            another_port.sendto(UTP, exit_address)
        await until(lambda: UTP in [data for _, data in came], what="who was sent to")
        unasked = [origin for origin, data in came if data == DHT]
        if letters_in:
            assert 3 <= len(unasked) <= 6
            assert set(unasked) == {stranger.address}
            assert world.dropped()["exit_strangers_too_fast"] == 20 - len(unasked)
            assert world.exit_node.carried().strangers == len(unasked)
            assert world.exit_node.carried().stranger_bytes == len(unasked) * len(DHT)
        else:
            assert unasked == []
            assert world.dropped()["exit_stranger"] == before + 20
        came.clear()
    await close(world)
    asked.sock.close()
    stranger.sock.close()


async def test_an_introduction_point_that_was_asked_may_answer_from_elsewhere(engine):
    asked, stranger = Sink(unused_host()), Sink(unused_host())
    world = await world_of(NO_RULES)
    came = []
    world.client.on_raw_data = lambda circuit, origin, data: came.append(data[22])
    world.client.message_from_outside = lambda circuit, origin, data: came.append(data[22])
    question, answer = (world.client.get_prefix() + bytes([number, 0, 0]) for number in (13, 14))
    loop = asyncio.get_running_loop()
    for sent, lets_in in ((DHT, 0), (question, 1)):
        world.send(asked.address, sent)
        _, exit_address = await asyncio.wait_for(loop.sock_recvfrom(asked.sock, 2000), 5)
        for message in (answer, question):
            stranger.sock.sendto(message, exit_address)
        await until(lambda: len(came) + world.dropped()["exit_stranger"] == 2 + 2 * lets_in)  # noqa: B023
        assert came == [14] * lets_in
    await close(world)
    asked.sock.close()
    stranger.sock.close()


@pytest.mark.parametrize(
    ("path", "lets_in"), [(b"/scrape?info_hash=ab", False), (b"/announce?info_hash=ab&port=7", True)]
)
async def test_an_announce_over_http_lets_strangers_in(engine, path, lets_in):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nde")
        writer.close()

    asked, stranger = Sink(unused_host()), Sink(unused_host())
    world = await world_of(NO_RULES, flags=EXIT_FLAGS | {PEER_FLAG_EXIT_HTTP})
    came = []
    world.client.on_raw_data = lambda circuit, origin, data: came.append(origin)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as tracker:
        request = b"GET %s HTTP/1.1\r\n\r\n" % path
        place, circuit_id = tracker.sockets[0].getsockname(), world.circuit.circuit_id
        assert b"de" in await world.client.perform_http_request(place, request, circuit_id=circuit_id)
    world.send(asked.address, DHT)
    _, exit_address = await asyncio.wait_for(asyncio.get_running_loop().sock_recvfrom(asked.sock, 2000), 5)
    stranger.sock.sendto(DHT, exit_address)
    asked.sock.sendto(DHT, exit_address)
    await until(lambda: asked.address in came)
    assert (stranger.address in came) == lets_in
    assert world.dropped()["exit_stranger"] == (0 if lets_in else 1)
    await close(world)
    asked.sock.close()
    stranger.sock.close()


async def test_a_circuit_has_so_many_destinations_and_new_ones_come_at_a_rate(engine):
    hosts = [unused_host() for _ in range(38)]
    world = await world_of(ExitRules(max_destinations=5))
    for host in hosts[:8]:
        world.send((host, 2000), DHT)
        world.send((hosts[0], 2001), DHT)  # another port is no other destination
    await world.refused_as("exit_too_many_destinations", 3)
    world.exit_node.set_exit_rules(ExitRules(new_per_s=1))
    for host in hosts[8:]:
        world.send((host, 3000), DHT)
    await until(lambda: world.dropped()["exit_new_destinations_too_fast"] >= 15)
    assert world.dropped()["exit_new_destinations_too_fast"] <= 21
    await close(world)


def test_contacts_of_one_that_answered_have_no_bound():
    contacts = Contacts()
    rules = ExitRules(max_unanswered=1)
    assert contacts.refusal(rules, ("8.8.8.8", 1), 0.0) is None
    assert contacts.refusal(rules, ("8.8.8.8", 1), 0.0) == "exit_unanswered"
    contacts.answered(("8.8.8.8", 1), 0.0)
    assert contacts.refusal(rules, ("8.8.8.8", 1), 0.0) is None


@pytest.mark.parametrize("damage", [lambda packed: packed[:-1], lambda packed: packed + b"\0", lambda packed: b""])
async def test_rules_that_are_cut_short_or_go_on_are_refused(engine, damage):
    packed = damage(ExitRules(https_names=("a.example",)).pack())
    with pytest.raises(ValueError, match="exit rules"):
        ExitRules.unpack(packed)
    if engine is EngineChoice.NATIVE:
        world = await world_of(ExitRules())
        with pytest.raises(ValueError, match="no exit rules"):
            world.exit_node.native.engine.set_exit_rules(packed)
        await close(world)


async def test_nobody_is_flooded_through_an_exit(engine):
    """Python answers to where a cell came from, which a neighbour may have made up."""
    world = await world_of(ExitRules())
    circuit_id = world.circuit.circuit_id
    ping = world.exit_node.get_prefix() + bytes([6]) + circuit_id.to_bytes(4, "big") + bytes(2)
    world.exit_node.on_packet_from_circuit((unused_host(), 9), ping, circuit_id)
    assert world.dropped()["exit_foreign_source"] == 1
    request = payloads.TestRequestPayload(circuit_id, 1, MAX_TEST_BYTES + 1, b"")
    world.client.send_cell(world.circuit.hop.address, request)
    await world.refused_as("test_response_too_large")
    await close(world)


async def test_names_count_together_whoever_asks_until_the_system_has_answered(engine, monkeypatch):
    """Threads would not be counted of whoever destroys a circuit, or asks by HTTP and does not wait."""
    asked, answers = [], threading.Event()

    def getaddrinfo(host, port, **options):
        asked.append(host)
        answers.wait(60)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    world = await world_of(NO_RULES, flags=EXIT_FLAGS | {PEER_FLAG_EXIT_HTTP})
    names, circuit_id = world.exit_node.names, world.circuit.circuit_id
    ask = world.client.perform_http_request(("http.example", 80), b"GET / HTTP/1.1\r\n\r\n", circuit_id=circuit_id)
    by_http = asyncio.ensure_future(ask)
    by_stream = world.exit_node.stream_names.look_up("stream.example", circuit_id)
    await until(lambda: names.under_way == 2)
    for number in range(2 * MAX_RESOLVING):
        world.send(DomainAddress(f"n{number}.example", 6881), DHT)
    await until(lambda: len(asked) == MAX_RESOLVING)
    await world.client.remove_circuit(circuit_id, destroy=1)
    await until(lambda: circuit_id not in world.exit_node.exit_sockets)
    by_http.cancel()
    assert names.under_way == MAX_RESOLVING
    answers.set()
    assert await by_stream is None
    await until(lambda: names.under_way == 0)
    assert len(asked) == MAX_RESOLVING  # what waited has ended with its circuit
    await close(world)


async def test_a_name_that_is_an_address_is_no_name(engine, monkeypatch):
    """libtorrent has a proxy look up whatever a tracker's URL says."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    sink = Sink(unused_host())
    world = await world_of(NO_RULES)
    world.send(DomainAddress(*sink.address), DHT)
    await until(lambda: sink.count() == 1)
    world.exit_node.allow_private = False
    assert await world.exit_node.stream_names.look_up("127.1", world.circuit.circuit_id) is None
    await close(world)
    sink.sock.close()


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label empty")])
async def test_what_others_ask_for_is_not_in_the_log(engine, failure, monkeypatch, caplog):
    """The log must contain neither the names that are resolved for others, nor their addresses, nor failures."""
    caplog.set_level(logging.INFO)

    def getaddrinfo(host, port, **options):
        asked.append(host)
        if "none" in host:
            raise failure
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (sink.address[0], 0))]

    world, asked, sink = await world_of(ExitRules()), [], Sink(unused_host())
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name in ("none.example", "some.example", "none.none.example", "some.example"):
        world.send(DomainAddress(name, sink.address[1]), DHT)
        world.send((sink.address[0], 0), DHT)
    await until(lambda: sink.count() or len(asked) == 4)
    await until(lambda: world.exit_node.names.under_way == 0)
    world.send(DomainAddress("none.example", 1), DHT)
    await until(lambda: asked.count("none.example") == 2 and world.exit_node.names.under_way == 0)
    assert world.dropped()["exit_name_unknown"] == 3
    await close(world)
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "example" in line or sink.address[0] in line] == []
