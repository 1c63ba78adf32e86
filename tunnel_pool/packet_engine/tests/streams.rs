//! Streams between a client and an exit, and between the ends of an end-to-end circuit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use packet_engine::cell::STREAM_ID;
use packet_engine::clients::Association;
use packet_engine::core::Event;
use packet_engine::counters::DropReason;
use packet_engine::keys::Direction;
use packet_engine::outbox::Via;
use packet_engine::routes::{Circuit, Exit, Purpose};
use packet_engine::rules::{HTTPS, TCP};
use packet_engine::streams::quic::LinkId;
use proptest::prelude::*;

#[test]
fn bytes_go_both_ways_whole_and_in_order() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    let (there, back) = (data(3_000_000), data(5_000_000));
    assert!(pair.moved(&mut client, &mut server, &there) == there);
    assert!(pair.moved(&mut server, &mut client, &back) == back);
    assert!(pair.largest_cell <= 1500 - 28 - 2 * 24, "{}", pair.largest_cell);
    assert_eq!(pair.client.core.routes.circuits[&ID].stats.read_streams().1, 1);
    assert_eq!(pair.exit.core.routes.exits[&ID].stats.read_streams().1, 1);
}

#[test]
fn lost_cells_cost_time_alone_and_a_narrow_way_costs_halves() {
    let mut pair = Pair::new(TCP);
    pair.lose_one_in = 40;
    pair.client.core.routes.circuits.get_mut(&ID).unwrap().largest_message = NARROW;
    pair.exit.core.routes.exits.get_mut(&ID).unwrap().largest_message = NARROW;
    pair.client.core.quic.remove(LinkId::ours(ID));
    pair.client.core.try_streams(ID);
    let (mut client, mut server) = pair.connected();
    let back = data(2_000_000);
    assert!(pair.moved(&mut client, &mut server, &data(10)) == data(10));
    assert!(pair.moved(&mut server, &mut client, &back) == back);
    assert!(pair.largest_cell <= 1280 - 28 - 2 * 24, "{}", pair.largest_cell);
}

#[test]
fn cells_out_of_order_cost_time_alone() {
    let mut pair = Pair::new(TCP);
    pair.hold_one_in = 20;
    let (mut client, mut server) = pair.connected();
    let back = data(5_000_000);
    assert!(pair.moved(&mut client, &mut server, &data(10)) == data(10));
    assert!(pair.moved(&mut server, &mut client, &back) == back);
}

#[test]
fn a_direction_ends_without_the_other_and_both_leave_nothing() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    assert!(pair.moved(&mut client, &mut server, HANDSHAKE) == HANDSHAKE);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(pair.end(&mut server), None);
    let back = data(100_000);
    assert!(pair.moved(&mut server, &mut client, &back) == back);
    drop(server);
    assert_eq!(pair.end(&mut client), None);
    pair.until(|pair| {
        let open = [
            pair.client.core.routes.circuits[&ID].stats.read_streams().1,
            pair.exit.core.routes.exits[&ID].stats.read_streams().1,
        ];
        (open == [0, 0]).then_some(())
    });
    assert_eq!((pair.client.service.len(), pair.exit.service.len()), (0, 0));
}

#[test]
fn a_reset_is_handed_on() {
    let mut pair = Pair::new(TCP);
    let (mut client, server) = pair.connected();
    client.write_all(HANDSHAKE).unwrap();
    for _ in 0..10 {
        pair.step();
    }
    socket2::SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    assert_eq!(pair.end(&mut client), Some(ErrorKind::ConnectionReset));
}

#[test]
fn what_the_exit_may_not_or_can_not_do_has_its_reply() {
    let mut pair = Pair::new(TCP);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut client = pair.client.open(&encoded(nobody));
    assert_eq!(pair.reply(&mut client), 5);
    assert_eq!(pair.end(&mut client), None);
    let mut pair = Pair::new(HTTPS);
    let mut client = pair.client.open(&encoded(nobody));
    assert_eq!(pair.reply(&mut client), 2);
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamNotOffered), 1);
}

#[test]
fn where_an_exit_lets_nobody_go_another_one_is_asked_and_remembered() {
    // Both circuits lead to the same exit in memory; what it answers depends on its rules of the moment.
    let mut pair = Pair::new(TCP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    pair.until(|pair| pair.client.core.quic.is_connected(LinkId::ours(ID)).then_some(()));
    let forbidden = LinkId::ours(ID);
    pair.client.core.forbidden(forbidden, &encoded(at));
    assert!(pair.client.core.is_forbidden(forbidden, &encoded(at)));
    assert!(!pair.client.core.is_forbidden(forbidden, &encoded(address("127.0.0.1:1"))));
    // Where there is no other circuit, it is asked all the same: its rules may have changed.
    let mut client = pair.client.open(&encoded(at));
    assert_eq!(pair.reply(&mut client), 0);
    let more = Circuit {
        tries_streams: true,
        relay_early_count: 8.into(),
        ..Circuit::new(address("198.51.100.2:2"), vec![keys(1)], LANE, Purpose::Data)
    };
    pair.client.core.routes.set_circuit(ID + 1, more);
    pair.exit.core.routes.exits.insert(ID + 1, Exit::new(address("198.51.100.1:1"), keys(1), Arc::default()));
    pair.client.core.try_streams(ID + 1);
    let other = LinkId::ours(ID + 1);
    pair.until(|pair| pair.client.core.quic.is_connected(other).then_some(()));
    for _ in 0..10 {
        assert_eq!(pair.client.core.link_for(LANE, &encoded(at)), Some(other));
    }
    // An exit that forbids it is left for the other, and the client hears of that one's answer alone.
    pair.client.core.routes.circuits.get_mut(&ID).unwrap().forbidden_ports.clear();
    for _ in 0..3 {
        pair.client.core.routes.circuits[&(ID + 1)].stats.stream_opened(); // so that it is not the first that is asked
    }
    let mut client = pair.client.open(&encoded(at));
    pair.exit.core.rules.protocols = Some(HTTPS);
    let there = pair.client.work();
    pair.exit.receive("198.51.100.1:1", &there);
    let back = pair.exit.work();
    pair.exit.core.rules.protocols = Some(TCP);
    pair.client.receive("198.51.100.2:2", &back);
    assert_eq!(pair.reply(&mut client), 0);
    assert!(pair.client.core.is_forbidden(forbidden, &encoded(at)));
    assert!(!pair.client.core.is_forbidden(other, &encoded(at)));
    assert_eq!(pair.client.core.routes.circuits[&(ID + 1)].stats.read_streams().1, 4);
}

#[test]
fn an_exit_that_lets_nobody_go_anywhere_is_asked_once_by_each_client() {
    let mut pair = Pair::new(TCP);
    pair.until(|pair| pair.client.core.quic.is_connected(LinkId::ours(ID)).then_some(()));
    pair.exit.core.rules.protocols = Some(HTTPS);
    for port in 1..400 {
        let mut client = pair.client.open(&encoded(([127, 0, 0, 1], port).into()));
        assert_eq!(pair.reply(&mut client), 2, "{port}");
        assert_eq!(pair.end(&mut client), None);
    }
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamNotOffered), 399);
}

#[test]
fn what_is_too_much_for_now_is_not_forbidden() {
    let mut pair = Pair::new(TCP);
    pair.until(|pair| pair.client.core.quic.is_connected(LinkId::ours(ID)).then_some(()));
    let dials = &mut pair.exit.core.routes.exits.get_mut(&ID).unwrap().dials;
    let later_ns = packet_engine::sys::monotonic_ns() + 3_600_000_000_000;
    while dials.may_ask(later_ns).is_ok() {}
    let to = encoded(address("127.0.0.1:6881"));
    let mut client = pair.client.open(&to);
    assert_eq!(pair.reply(&mut client), 1);
    assert!(!pair.client.core.is_forbidden(LinkId::ours(ID), &to));
}

#[test]
fn an_exit_without_streams_says_nothing_and_the_client_is_told() {
    let mut pair = Pair::new(0);
    let mut client = pair.client.open(&encoded(address("127.0.0.1:9")));
    for _ in 0..20 {
        pair.step();
    }
    assert_eq!(client.read(&mut [0; 10]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    assert!(pair.exit.core.counters.get(DropReason::StreamMalformed) > 0);
    pair.client.core.link_lost(LinkId::ours(ID));
    pair.client.service.forget(&mut pair.client.core, LinkId::ours(ID));
    assert!(pair.client.core.routes.circuits[&ID].is_silent);
    pair.client.core.try_streams(ID);
    assert!(!pair.client.core.quic.has(LinkId::ours(ID)));
    let mut client = pair.client.open(&encoded(address("127.0.0.1:9")));
    client.set_nonblocking(false).unwrap();
    let mut reply = [0; 10];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 3);
}

#[test]
fn content_that_may_not_pass_reaches_nobody() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(pair.end(&mut client), Some(ErrorKind::ConnectionReset));
    assert_eq!(pair.end(&mut server), Some(ErrorKind::ConnectionReset));
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamContentRefused), 1);

    let (mut client, mut server) = pair.connected();
    server.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    assert!(pair.moved(&mut client, &mut server, HANDSHAKE) == HANDSHAKE);
    assert_eq!(pair.end(&mut client), Some(ErrorKind::ConnectionReset));
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamContentRefused), 2);
}

#[test]
fn connections_that_say_nothing_are_few_and_those_that_speak_are_not_counted() {
    let mut pair = Pair::new(TCP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = encoded(listener.local_addr().unwrap());
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(pair.client.open(&at));
        assert_eq!(pair.reply(held.last_mut().unwrap()), 0);
    }
    let mut client = pair.client.open(&at);
    assert_eq!(pair.reply(&mut client), 1);
    assert_eq!(pair.exit.core.counters.get(DropReason::StreamFailedTooOften), 1);
    // Both sides of one speak: one more may come, and one alone.
    let (mut server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    assert!(pair.moved(&mut held[0], &mut server, HANDSHAKE) == HANDSHAKE);
    assert!(pair.moved(&mut server, &mut held[0], HANDSHAKE) == HANDSHAKE);
    for reply in [0, 1] {
        held.push(pair.client.open(&at));
        assert_eq!(pair.reply(held.last_mut().unwrap()), reply);
    }
    // Those that ended unjudged have failed.
    held.truncate(1);
    pair.until(|pair| (pair.exit.service.len() == 1).then_some(()));
    let mut client = pair.client.open(&at);
    assert_eq!(pair.reply(&mut client), 1);
    assert!(pair.moved(&mut server, &mut held[0], HANDSHAKE) == HANDSHAKE);
}

#[test]
fn a_name_is_looked_up_by_python() {
    let mut pair = Pair::new(TCP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = |name: &[u8]| [&[3, name.len() as u8], name, &port.to_be_bytes()].concat();
    let mut client = pair.client.open(&name(b"peer.example"));
    let asked = |pair: &mut Pair| {
        pair.until(|pair| {
            pair.exit.core.take_events().find_map(|event| match event {
                Event::Resolve { number, name, .. } => Some((number, name)),
                _ => None,
            })
        })
    };
    let (number, asked_name) = asked(&mut pair);
    assert_eq!(asked_name, "peer.example");
    let Node { core, service, watched, .. } = &mut pair.exit;
    service.resolved(core, watched, number, Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(pair.reply(&mut client), 0);
    let mut client = pair.client.open(&name(b"nowhere.example"));
    let (number, _) = asked(&mut pair);
    let Node { core, service, watched, .. } = &mut pair.exit;
    service.resolved(core, watched, number, None);
    assert_eq!(pair.reply(&mut client), 4);
}

/// Both ends of an end-to-end circuit; the seeder is in the exit's place.
fn end_to_end() -> Pair {
    let mut pair = Pair::new(0);
    pair.rendezvous = Some([keys(1), keys(3)]);
    let ends = [
        (&mut pair.client, "198.51.100.2:2", 1, Direction::Backward),
        (&mut pair.exit, "198.51.100.1:1", 3, Direction::Forward),
    ];
    for (node, neighbour, seed, sends) in ends {
        let circuit = Circuit {
            end_to_end: Some((keys(9), sends)),
            tries_streams: true,
            relay_early_count: 8.into(),
            known_as: ID,
            ..Circuit::new(address(neighbour), vec![keys(seed)], LANE, Purpose::EndToEnd)
        };
        node.core.routes.exits.clear();
        node.core.quic.remove(LinkId::ours(ID));
        node.core.routes.set_circuit(ID, circuit);
        node.core.try_streams(ID);
    }
    pair
}

/// The address that stands for the other end (py-ipv8 tunnel.py).
fn other_end() -> Vec<u8> {
    [&[1][..], &ID.to_be_bytes(), &1024u16.to_be_bytes()].concat()
}

#[test]
fn the_ends_of_an_end_to_end_circuit_meet_when_both_connect() {
    let mut pair = end_to_end();
    let mut downloader = pair.client.open(&other_end());
    let circuit_id = pair.until(|pair| {
        pair.exit.core.take_events().find_map(|event| match event {
            Event::Guest { circuit_id, infohash: None, .. } => Some(circuit_id),
            _ => None,
        })
    });
    assert_eq!(circuit_id, ID);
    let mut seeder = pair.exit.open(&other_end());
    assert_eq!(pair.reply(&mut downloader), 0);
    assert_eq!(pair.reply(&mut seeder), 0);
    assert!(pair.moved(&mut downloader, &mut seeder, &data(100_000)) == data(100_000));
    assert!(pair.moved(&mut seeder, &mut downloader, &data(100_000)) == data(100_000));
    // The seeder opens no stream itself.
    let mut seeder = pair.exit.open(&other_end());
    assert_eq!(pair.reply(&mut seeder), 4);
}

#[test]
fn utp_is_refused_where_streams_lead_to_the_other_end() {
    let syn = [0x41, 0, 7, 8, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 9, 10, 0, 0];
    let reset = [0x31, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10];
    let of_client = |payload: &[u8]| [&[0; 3], other_end().as_slice(), payload].concat();
    let asked = |node: &mut Node, payload: &[u8]| {
        node.core.client_received(1, address("127.0.0.1:5"), &of_client(payload));
        let mail = node.core.gate.outbox.sorted(&[]);
        let sent: Vec<_> = mail.entries.iter().map(|entry| (entry.via, mail.bytes(entry).to_vec())).collect();
        node.core.gate.outbox.clear();
        sent
    };
    let mut pair = end_to_end();
    for node in [&mut pair.client, &mut pair.exit] {
        node.core.routes.clients.add(1, Association { lane: LANE, client: address("127.0.0.1:5") });
        let sent = asked(node, &syn);
        assert!(matches!(sent[..], [(Via::Tunnel, _)]), "it is not known yet that the other end speaks streams");
    }
    pair.until(|pair| {
        [&pair.client, &pair.exit].iter().all(|node| node.core.quic.is_connected(LinkId::ours(ID))).then_some(())
    });
    for node in [&mut pair.client, &mut pair.exit] {
        assert_eq!(asked(node, &syn), [(Via::Client(1), of_client(&reset))]);
        assert!(matches!(asked(node, &[0x21; 20])[..], [(Via::Tunnel, _)]), "what the other end began goes on");
        node.core.stream = Some(vec![]);
        node.core.frame_received(ID, &other_end(), &syn);
        assert!(node.core.stream.as_ref().unwrap().ends_with(&reset));
    }
}

#[test]
fn guests_come_at_a_rate() {
    let mut pair = end_to_end();
    let mut guests = 0;
    for _ in 0..40 {
        let mut downloader = pair.client.open(&other_end());
        for _ in 0..3 {
            pair.step();
        }
        guests += pair.exit.core.take_events().filter(|event| matches!(event, Event::Guest { .. })).count();
        socket2::SockRef::from(&downloader).set_linger(Some(Duration::ZERO)).unwrap();
        let _ = downloader.read(&mut [0; 10]);
    }
    assert!((9..=12).contains(&guests), "{guests}");
    assert!(pair.exit.core.counters.get(DropReason::StreamTooFast) > 0);
}

#[test]
fn a_guest_may_send_nothing_but_bittorrent() {
    let mut pair = end_to_end();
    let mut downloader = pair.client.open(&other_end());
    pair.until(|pair| pair.exit.core.take_events().find(|event| matches!(event, Event::Guest { .. })));
    let mut seeder = pair.exit.open(&other_end());
    assert_eq!((pair.reply(&mut downloader), pair.reply(&mut seeder)), (0, 0));
    downloader.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(pair.end(&mut seeder), Some(ErrorKind::ConnectionReset));
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_streams_leave_nothing_behind() {
    let mut pair = Pair::new(TCP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let to = encoded(listener.local_addr().unwrap());
    let mut before = 0;
    for number in 0..10_000 {
        pair.exit.later_ns += 1_000_000_000; // its limits are another test's
        let mut client = pair.client.open(&to);
        assert_eq!(pair.reply(&mut client), 0);
        let (mut server, _) = pair.until(|_| listener.accept().ok());
        server.set_nonblocking(true).unwrap();
        assert!(pair.moved(&mut client, &mut server, HANDSHAKE) == HANDSHAKE);
        assert!(pair.moved(&mut server, &mut client, HANDSHAKE) == HANDSHAKE);
        // One side or the other ends it, in order or not.
        if number % 3 == 0 {
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
        let (first, mut second) = if number % 2 == 0 { (client, server) } else { (server, client) };
        drop(first);
        pair.end(&mut second);
        drop(second);
        if number == 100 {
            before = descriptors();
        }
    }
    pair.until(|pair| (pair.client.service.is_empty() && pair.exit.service.is_empty()).then_some(()));
    assert!(descriptors() <= before + 4, "{before}, {}", descriptors());
    let stats = pair.exit.core.routes.exits[&ID].stats.read_streams();
    assert_eq!((stats.1, stats.2), (0, 10_000));
}

#[test]
fn refusals_use_no_streams_up() {
    let mut pair = Pair::new(TCP);
    for _ in 0..600 {
        pair.exit.later_ns += 60_000_000_000;
        let mut client = pair.client.open(&encoded(address("224.0.0.1:80")));
        assert_eq!(pair.reply(&mut client), 2);
    }
}

/// What this process has in memory, in bytes.
fn memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_client_that_opens_as_many_streams_as_it_can_has_some_and_no_more() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    let link = LinkId::ours(ID);
    let before = memory();
    let (mut opened, mut most) = (0, 0);
    let mut keys = Vec::new();
    while opened < 100_000 {
        for key in keys.drain(..) {
            pair.client.core.quic.reset(key);
        }
        while let Some(key) = pair.client.core.quic.open(link) {
            // A request that is never whole, a malformed one, one that may not be granted.
            let requests: [&'static [u8]; 3] = [&[1, 3, 200], &[9], &[1, 1, 224, 0, 0, 1, 0, 80]];
            let mut request = bytes::Bytes::from_static(requests[opened % 3]);
            pair.client.core.quic.write(key, &mut request);
            keys.push(key);
            opened += 1;
        }
        pair.step();
        most = most.max(pair.exit.service.len());
    }
    assert!(most <= 257, "{most}");
    assert!(memory() < before + (64 << 20), "{before} {}", memory());
    assert!(pair.exit.core.counters.get(DropReason::StreamMalformed) > 0);
    // Who was there goes on.
    assert!(pair.moved(&mut client, &mut server, &data(100_000)) == data(100_000));
}

#[test]
fn a_client_that_never_reads_holds_up_its_server_and_nobody_else() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    assert!(pair.moved(&mut client, &mut server, HANDSHAKE) == HANDSHAKE);
    let block = vec![7; 1 << 16];
    let mut sent = server.write(HANDSHAKE).unwrap();
    for _ in 0..2_000 {
        while let Ok(count) = server.write(&block) {
            sent += count;
        }
        pair.step();
    }
    // A stream's window, and what the sockets keep.
    assert!(sent < 40 << 20, "{sent}");
    let (mut another, mut other_server) = pair.connected();
    assert!(pair.moved(&mut another, &mut other_server, &data(500_000)) == data(500_000));
}

#[test]
fn a_stream_ends_with_its_circuit_on_both_sides() {
    let mut pair = Pair::new(TCP);
    let (mut client, mut server) = pair.connected();
    for node in [&mut pair.client, &mut pair.exit] {
        for link in [LinkId::ours(ID), LinkId::exit(ID)] {
            node.service.forget(&mut node.core, link);
        }
    }
    assert_eq!(pair.end(&mut client), Some(ErrorKind::ConnectionReset));
    assert_eq!(pair.end(&mut server), Some(ErrorKind::ConnectionReset));
    assert_eq!((pair.client.service.len(), pair.exit.service.len()), (0, 0));
}

/// A message that the client sends in a cell of its own making.
fn forged(pair: &mut Pair, message: &[u8]) {
    pair.client.core.send_cell(address("198.51.100.2:2"), ID, false, message);
    let cells = pair.client.work();
    pair.exit.receive("198.51.100.1:1", &cells);
    pair.exit.work();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_stream_message_panics_or_ends_others(
        messages in prop::collection::vec((0u8..4, prop::collection::vec(any::<u8>(), 0..60)), 1..20),
        valid in prop::collection::vec((0usize..1200, any::<u8>()), 0..6),
    ) {
        let mut pair = Pair::new(TCP);
        for (kind, rest) in messages {
            forged(&mut pair, &[&[STREAM_ID, kind][..], &rest].concat());
        }
        // A packet of a real client, bent.
        pair.client.core.quic.remove(LinkId::ours(ID));
        pair.client.core.try_streams(ID);
        for cell in pair.client.work() {
            let mut cell = cell;
            let sealed = 0..cell.len() - 29;
            let text = keys(1).open(Direction::Forward, &mut cell[29..], sealed).unwrap();
            let mut message = cell[29..][text].to_vec();
            for (at, byte) in &valid {
                if let Some(place) = message.get_mut(*at + 2) { *place = *byte; }
            }
            forged(&mut pair, &message);
        }
        prop_assert!(pair.exit.service.len() <= 256);
    }
}
