//! Strangers who connect by TCP to where a circuit is found, and reach its client's torrents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod common;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use common::*;
use packet_engine::clients::Association;
use packet_engine::core::Event;
use packet_engine::counters::DropReason;
use packet_engine::ends::{slot_of_circuit, Steering, SECRET_BYTES};
use packet_engine::outbox::Via;
use packet_engine::rules::{BITTORRENT, ENCRYPTED_TCP, HTTPS, TCP};
use packet_engine::streams::quic::LinkId;

const INFOHASH: [u8; 20] = *b"the torrent's hash..";
/// libtorrent's.
const SYN: [u8; 20] = [0x41, 0, 7, 8, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 0, 0];

/// An address at which no program has a socket, of UDP or TCP.
fn free_address() -> SocketAddr {
    loop {
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if TcpListener::bind(at).is_ok() {
            return at;
        }
    }
}

/// What a peer sends first (BEP 3).
fn handshake() -> Vec<u8> {
    [&HANDSHAKE[..], &[0; 8], &INFOHASH, b"-XX0001-a peer's id.."].concat()
}

/// An exit whose circuit was announced by both ends, and where it is found.
fn announced(protocols: u8) -> (Pair, SocketAddr) {
    let mut pair = Pair::new(protocols);
    pair.exit.core.rules.inbound_per_s = Some(500);
    pair.client.core.routes.announce(ID);
    pair.until(|pair| pair.exit.core.quic.is_connected(LinkId::exit(ID)).then_some(()));
    let at = free_address();
    pair.exit.core.exit_announced(ID);
    open_door(&mut pair, at);
    (pair, at)
}

fn open_door(pair: &mut Pair, at: SocketAddr) {
    assert_eq!(std::mem::take(&mut pair.exit.core.to_open_door), [ID]);
    let Node { core, service, watched, .. } = &mut pair.exit;
    service.open_door(core, watched, ID, at);
}

fn call(at: SocketAddr) -> TcpStream {
    call_from(1, at)
}

/// Connect from one of many hosts of loopback.
fn call_from(host: u8, at: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&at.into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

/// The id by which the client knows the next guest.
fn guest(pair: &mut Pair) -> u32 {
    pair.until(|pair| {
        pair.client.core.take_events().find_map(|event| match event {
            Event::Guest { circuit_id: ID, known_as, infohash } => {
                assert_eq!(infohash, Some(INFOHASH));
                Some(known_as)
            }
            _ => None,
        })
    })
}

fn address_of(guest: u32) -> Vec<u8> {
    [&[1][..], &guest.to_be_bytes(), &1024u16.to_be_bytes()].concat()
}

#[test]
fn a_caller_reaches_the_client_once_that_connects_to_him() {
    let (mut pair, at) = announced(TCP);
    for _ in 0..3 {
        let mut caller = call(at);
        caller.write_all(&handshake()).unwrap();
        let known_as = guest(&mut pair);
        let steering = Steering::of(&[0; SECRET_BYTES], LANE);
        assert_eq!(steering.slot_of(known_as), slot_of_circuit(ID), "his address leads to the same child");
        let mut client = pair.client.open(&address_of(known_as));
        assert_eq!(pair.reply(&mut client), 0);
        let answer = [handshake(), data(1_000_000)].concat();
        assert!(pair.moved(&mut client, &mut caller, &answer) == answer);
        let more = data(1_000_000);
        let came = pair.moved(&mut caller, &mut client, &more);
        assert!([handshake(), more].concat().starts_with(&came));
    }
    assert_eq!(pair.exit.core.counters.strangers().0, 3);
    assert!(pair.client.core.guests.is_empty());
}

#[test]
fn a_guest_is_met_by_tcp_alone_and_his_address_goes_nowhere_else() {
    let (mut pair, at) = announced(TCP);
    pair.client.core.routes.clients.add(1, Association { lane: LANE, client: address("127.0.0.1:5") });
    let sent_by = |pair: &mut Pair, guest: u32| {
        let datagram = [&[0; 3], address_of(guest).as_slice(), &SYN].concat();
        pair.client.core.client_received(1, address("127.0.0.1:5"), &datagram);
        let mail = pair.client.core.gate.outbox.sorted(&[]);
        let sent: Vec<_> = mail.entries.iter().map(|entry| entry.via).collect();
        pair.client.core.gate.outbox.clear();
        sent
    };
    let mut caller = call(at);
    caller.write_all(&handshake()).unwrap();
    let known_as = guest(&mut pair);
    assert_eq!(sent_by(&mut pair, known_as), [Via::Client(1)], "uTP is refused");
    let mut other_lane = {
        let (ours, theirs) = connected_pair();
        let mut client = asked(theirs, &address_of(known_as));
        client.asked.lane = LANE + 1;
        pair.client.service.open(&mut pair.client.core, &pair.client.watched, client);
        ours
    };
    assert_eq!(pair.reply(&mut other_lane), 3, "a guest is for the clients of his circuit's lane");
    drop(caller);
    pair.until(|pair| pair.client.core.guests.is_empty().then_some(()));
    assert_eq!(sent_by(&mut pair, known_as), []);
    let mut client = pair.client.open(&address_of(known_as));
    assert_eq!(pair.reply(&mut client), 3);
}

fn connected_pair() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).unwrap();
    }
    (ours, theirs)
}

#[test]
fn what_is_not_bittorrent_reaches_no_client() {
    let (mut pair, at) = announced(TCP | HTTPS);
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xA5; 96], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut caller = call(at);
        caller.write_all(said).unwrap();
        assert!(matches!(pair.end(&mut caller), None | Some(ErrorKind::ConnectionReset)));
    }
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamContentRefused), 3);
    assert_eq!(pair.exit.service.len(), 0);
    // An encrypted handshake names no torrent to us, wherever it may go.
    let (mut pair, at) = announced(TCP | ENCRYPTED_TCP);
    let mut caller = call(at);
    caller.write_all(&[0xA5; 96]).unwrap();
    assert!(matches!(pair.end(&mut caller), None | Some(ErrorKind::ConnectionReset)));
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamContentRefused), 1);
    assert!(pair.client.core.take_events().all(|event| !matches!(event, Event::Guest { .. })));
}

#[test]
fn what_the_client_answers_is_judged_as_well() {
    let (mut pair, at) = announced(TCP);
    let mut caller = call(at);
    caller.write_all(&handshake()).unwrap();
    let known_as = guest(&mut pair);
    let mut client = pair.client.open(&address_of(known_as));
    assert_eq!(pair.reply(&mut client), 0);
    client.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    assert_eq!(pair.end(&mut caller), Some(ErrorKind::ConnectionReset));
}

#[test]
fn doors_are_opened_where_client_operator_and_circuit_want_it_and_nowhere_else() {
    let mut pair = Pair::new(TCP);
    pair.until(|pair| pair.exit.core.quic.is_connected(LinkId::exit(ID)).then_some(()));
    let at = free_address();
    let Node { core, service, watched, .. } = &mut pair.exit;
    core.rules.inbound_per_s = Some(500);
    service.open_door(core, watched, ID, at);
    assert!(TcpStream::connect(at).is_err(), "it was not announced");
    core.exit_announced(ID);
    core.rules.inbound_per_s = None;
    service.open_door(core, watched, ID, at);
    assert!(TcpStream::connect(at).is_err(), "the operator lets nobody in");
    core.rules.inbound_per_s = Some(500);
    service.open_door(core, watched, ID, at);
    assert!(TcpStream::connect(at).is_ok());
    core.rules.inbound_per_s = None;
    service.close_forbidden_doors(core);
    assert!(TcpStream::connect(at).is_err());
    core.rules.inbound_per_s = Some(500);
    service.open_door(core, watched, ID, at);
    assert!(TcpStream::connect(at).is_ok());
    service.forget(core, LinkId::exit(ID));
    assert!(TcpStream::connect(at).is_err(), "the circuit is gone");
}

#[test]
fn a_client_that_allows_no_streams_is_called_by_nobody() {
    let mut pair = Pair::new(TCP);
    let Node { core, .. } = &mut pair.client;
    core.quic.remove(LinkId::ours(ID));
    core.quic.connect(LinkId::ours(ID), 1371, 0, core.now);
    pair.exit.core.rules.inbound_per_s = Some(500);
    pair.until(|pair| pair.exit.core.quic.is_connected(LinkId::exit(ID)).then_some(()));
    pair.exit.core.exit_announced(ID);
    let at = free_address();
    open_door(&mut pair, at);
    assert!(TcpStream::connect(at).is_err());
    assert!(!pair.exit.core.routes.exits[&ID].has_door);
}

#[test]
fn a_client_that_did_not_announce_its_circuit_has_no_guests() {
    let (mut pair, at) = announced(TCP);
    pair.client.core.routes.remove_circuit(ID);
    let known = Node::client().core.routes.circuits.remove(&ID).unwrap();
    pair.client.core.routes.set_circuit(ID, known);
    let mut caller = call(at);
    caller.write_all(&handshake()).unwrap();
    assert_eq!(pair.end(&mut caller), Some(ErrorKind::ConnectionReset));
    assert_eq!(pair.client.core.counters.get(DropReason::StreamNotOffered), 1);
}

#[test]
fn callers_come_at_a_rate_and_few_at_a_time() {
    let (mut pair, at) = announced(TCP);
    let mut callers = Vec::new();
    for host in 1..=80 {
        let mut caller = call_from(host, at);
        caller.write_all(HANDSHAKE).unwrap(); // and no more: the torrent's hash does not come
        callers.push(caller);
        pair.exit.later_ns += 10_000_000;
        pair.step();
    }
    let open = pair.exit.service.len();
    assert!((50..=60).contains(&open), "{open}");
    assert!(pair.exit.core.counters.get(DropReason::ExitStrangersTooFast) > 0);
    for host in 100..140 {
        pair.exit.later_ns += 1_000_000_000;
        callers.push(call_from(host, at));
        pair.step();
    }
    assert_eq!(pair.exit.service.len(), 64);
    assert!(pair.exit.core.counters.get(DropReason::StreamTooMany) > 0);
    pair.until(|pair| (!pair.exit.core.routes.exits[&ID].has_door).then_some(()));
    drop(callers);
    pair.until(|pair| pair.exit.core.routes.exits[&ID].has_door.then_some(()));
    pair.until(|pair| pair.exit.service.is_empty().then_some(()));
    pair.until(|pair| pair.client.service.is_empty().then_some(()));
}

#[test]
fn one_host_has_few_of_the_places() {
    let (mut pair, at) = announced(TCP);
    let callers: Vec<_> = (0..20).map(|_| call(at)).collect();
    let refused = |pair: &Pair| {
        let counters = &pair.exit.core.counters;
        counters.get(DropReason::StreamTooMany) + counters.get(DropReason::ExitStrangersTooFast)
    };
    pair.until(|pair| (refused(pair) == 12).then_some(()));
    assert_eq!(pair.exit.service.len(), 8);
    let mut another = call_from(2, at);
    another.write_all(&handshake()).unwrap();
    guest(&mut pair);
    drop(callers);
}

#[test]
fn one_address_that_calls_without_end_shuts_nobody_out() {
    let (mut pair, at) = announced(TCP);
    for round in 0..100 {
        pair.exit.later_ns += 100_000_000; // ten calls a second
        let loud = call(at);
        pair.step();
        drop(loud);
        if round % 10 == 9 {
            let mut other = call_from(2 + round / 10, at);
            other.write_all(&handshake()).unwrap();
            guest(&mut pair);
        }
    }
    assert!(pair.exit.core.counters.get(DropReason::ExitStrangersTooFast) > 50);
}

#[test]
fn who_may_not_be_sent_to_is_not_let_in_and_not_answered() {
    let (mut pair, at) = announced(TCP | BITTORRENT);
    let packed = |ip: [u8; 4]| u128::from(std::net::Ipv4Addr::from(ip).to_ipv6_mapped()).to_be_bytes();
    let denied = [packed([127, 0, 0, 9]), packed([127, 0, 0, 9])].concat();
    pair.exit.core.rules.denied = packet_engine::rules::Ranges::of_addresses(&denied).unwrap();
    let mut caller = call_from(9, at);
    caller.write_all(&handshake()).unwrap();
    assert!(matches!(pair.end(&mut caller), None | Some(ErrorKind::ConnectionReset)));
    assert_eq!(pair.exit.core.counters.get(DropReason::ExitNetworkDenied), 1);
    pair.exit.core.exit_received(ID, address("127.0.0.9:6881"), &SYN);
    let mail = pair.exit.core.gate.outbox.sorted(&[]);
    assert!(mail.entries.iter().all(|entry| entry.via == Via::Tunnel));
}

#[test]
fn who_calls_again_is_known_as_before_and_others_behind_his_address_are_not() {
    let (mut pair, at) = announced(TCP);
    let mut known = Vec::new();
    for _ in 0..2 {
        let mut caller = call(at);
        caller.write_all(&handshake()).unwrap();
        known.push(guest(&mut pair));
        let mut client = pair.client.open(&address_of(known[0]));
        assert_eq!(pair.reply(&mut client), 0);
        drop((caller, client));
        pair.until(|pair| (pair.client.service.is_empty() && pair.client.core.met.is_empty()).then_some(()));
    }
    assert_eq!(known[0], known[1]);
    let mut callers: Vec<_> = (0..3).map(|_| call(at)).collect();
    let mut at_once: Vec<_> = callers
        .iter_mut()
        .map(|caller| {
            caller.write_all(&handshake()).unwrap();
            guest(&mut pair)
        })
        .collect();
    at_once.sort_unstable();
    at_once.dedup();
    assert_eq!(at_once.len(), 3);
    assert!(at_once.contains(&known[0]));
    let mut other = call_from(2, at);
    other.write_all(&handshake()).unwrap();
    assert!(!at_once.contains(&guest(&mut pair)));
}

#[test]
fn a_guest_for_whom_there_is_no_torrent_is_told_so_at_once() {
    let (mut pair, at) = announced(TCP);
    let mut caller = call(at);
    caller.write_all(&handshake()).unwrap();
    let known_as = guest(&mut pair);
    let Node { core, service, .. } = &mut pair.client;
    service.refuse_guests(core, known_as);
    assert!(core.guests.is_empty());
    assert_eq!(pair.end(&mut caller), Some(ErrorKind::ConnectionReset));
    pair.until(|pair| (pair.client.service.is_empty() && pair.exit.service.is_empty()).then_some(()));
}

#[test]
fn a_hostile_exit_has_few_guests_a_second_and_none_without_a_handshake() {
    let (mut pair, _) = announced(TCP);
    let link = LinkId::exit(ID);
    let from = [&[2][..], &encoded(address("198.51.100.7:7"))].concat();
    let mut guests = 0;
    for round in 0..200 {
        if let Some(key) = pair.exit.core.quic.open(link) {
            let whole = [from.clone(), handshake()].concat();
            let others: [&[u8]; 3] = [&[9, 9, 9], &[1, 1, 1, 2, 3, 4, 0, 80], &from];
            let said = if round % 2 == 0 { whole } else { others[round % 3].to_vec() };
            pair.exit.core.quic.write(key, &mut bytes::Bytes::from(said));
        }
        pair.step();
        guests += pair.client.core.take_events().filter(|event| matches!(event, Event::Guest { .. })).count();
    }
    assert!((30..=64).contains(&guests), "{guests}");
    assert!(pair.client.service.len() <= 64 && pair.client.core.guests.len() <= 64);
    assert!(pair.client.core.counters.get(DropReason::StreamMalformed) > 0);
}

#[test]
fn utp_of_strangers_is_refused_once_where_they_can_come_by_tcp() {
    let (mut pair, at) = announced(TCP | BITTORRENT);
    let came = |pair: &mut Pair, from: &str| {
        pair.exit.core.exit_received(ID, address(from), &SYN);
        let mail = pair.exit.core.gate.outbox.sorted(&[]);
        let sent: Vec<_> = mail.entries.iter().map(|entry| (entry.via, entry.to)).collect();
        pair.exit.core.gate.outbox.clear();
        sent
    };
    let refused = |from: &str| [(Via::Exit(ID), address(from))];
    let led_on = [(Via::Tunnel, address("198.51.100.1:1"))];
    assert_eq!(came(&mut pair, "9.9.9.1:5"), refused("9.9.9.1:5"));
    assert_eq!(came(&mut pair, "9.9.9.1:6"), led_on);
    let mut caller = call(at);
    caller.write_all(&handshake()).unwrap();
    guest(&mut pair);
    for from in ["9.9.9.2:5", "9.9.9.3:5", "9.9.9.4:5"] {
        assert_eq!(came(&mut pair, from), refused(from));
    }
    assert_eq!(came(&mut pair, "9.9.9.5:5"), led_on, "nobody who was refused has come");
    let Node { core, service, .. } = &mut pair.exit;
    core.tcp_first.has_come();
    service.close_door(core, ID);
    assert_eq!(came(&mut pair, "9.9.9.6:5"), led_on);
}
