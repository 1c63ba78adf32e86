//! The engine's decisions from outside: two nodes in memory, and anything a stranger may send.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use packet_engine::address::Destination;
use packet_engine::clients::Association;
use packet_engine::core::{Core, Event, Settings};
use packet_engine::counters::{Counters, DropReason};
use packet_engine::ends::{slot_of_circuit, Steering, SECRET_BYTES};
use packet_engine::keys::{Direction, HalfParts, SessionKeys, COUNTER_BYTES, TAG_BYTES};
use packet_engine::outbox::Via;
use packet_engine::policy::ExitPolicy;
use packet_engine::routes::{Circuit, Exit, Purpose, Relay};
use proptest::prelude::*;

const PREFIX: [u8; 22] = *b"\x00\x02a community of 20 b.";
const OURS: u32 = 0x0100_0001;
const THEIRS: u32 = 0x0200_0002;
const LATER_NS: u64 = 1 << 40;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn keys(seed: u8) -> Arc<SessionKeys> {
    let half = HalfParts { key: &[seed; 32], salt: &[seed; 4], counter: 0 };
    Arc::new(SessionKeys::new(&half, &half).unwrap())
}

fn core(peer_flags: u16) -> Core {
    let settings = Settings {
        prefix: PREFIX,
        other_prefixes: Some(vec![]),
        max_relay_early: 8,
        no_crypto: vec![2, 3],
        policy: ExitPolicy { peer_flags, own_messages: false, allow_private: false },
        end_secret: [0; 32],
    };
    Core::new(settings, Arc::new(Counters::default()))
}

fn circuit(seeds: &[u8]) -> Circuit {
    let layers = seeds.iter().map(|seed| keys(*seed)).collect();
    Circuit::new(address("198.51.100.1:1"), layers, 1, Purpose::Data)
}

fn client() -> Core {
    let mut core = core(0);
    core.routes.set_circuit(OURS, circuit(&[1, 2]));
    core.routes.clients.add(1, Association { lane: 1, client: address("127.0.0.1:5") });
    core
}

fn relay() -> Core {
    let mut core = core(0);
    for (from, to, direction, ip) in
        [(OURS, THEIRS, Direction::Forward, "198.51.100.2:2"), (THEIRS, OURS, Direction::Backward, "198.51.100.3:3")]
    {
        let relay = Relay {
            next_id: to,
            to: address(ip),
            keys: keys(1),
            direction,
            rendezvous: false,
            relay_early_count: 1.into(),
            stats: Arc::default(),
        };
        core.routes.relays.insert(from, relay);
    }
    core
}

fn exit() -> Core {
    let mut core = core(2);
    core.rules.inbound_per_s = Some(500);
    core.routes.exits.insert(THEIRS, Exit::new(address("198.51.100.1:1"), keys(2), Arc::default()));
    core
}

/// An exit whose circuit has told trackers where it is found.
fn announced_exit() -> Core {
    let mut core = exit();
    core.exit_announced(THEIRS);
    core
}

/// What left, and empty the outbox.
fn sent(core: &mut Core) -> Vec<(Via, SocketAddr, Vec<u8>)> {
    sent_with(core, &[])
}

fn sent_with(core: &mut Core, inbox: &[u8]) -> Vec<(Via, SocketAddr, Vec<u8>)> {
    let mail = core.gate.outbox.sorted(inbox);
    let sent = mail.entries.iter().map(|entry| (entry.via, entry.to, mail.bytes(entry).to_vec())).collect();
    core.gate.outbox.clear();
    sent
}

/// What leaves once a datagram came in by the tunnel socket, somewhere in the inbox.
fn passed(core: &mut Core, from: &str, datagram: &[u8]) -> Vec<(Via, SocketAddr, Vec<u8>)> {
    const PLACE: usize = 77;
    let mut inbox = vec![0xaa; PLACE];
    inbox.extend_from_slice(datagram);
    inbox.resize(PLACE + datagram.len() + PLACE, 0xaa);
    let end = PLACE + datagram.len();
    core.tunnel_received(address(from), &mut inbox[PLACE..end], PLACE);
    assert!(inbox[..PLACE].iter().chain(&inbox[end..]).all(|byte| *byte == 0xaa));
    sent_with(core, &inbox)
}

fn one(mut all: Vec<(Via, SocketAddr, Vec<u8>)>) -> (Via, SocketAddr, Vec<u8>) {
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn request(payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 1, 8, 8, 8, 8, 0, 80], payload].concat()
}

#[test]
fn a_datagram_goes_there_and_back() {
    let (mut client, mut relay, mut exit) = (client(), relay(), exit());
    client.client_received(1, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    let (_, _, cell) = one(sent(&mut client));
    let (Via::Tunnel, to, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell)) else { panic!() };
    assert_eq!(to, address("198.51.100.2:2"));
    let (Via::Exit(THEIRS), to, payload) = one(passed(&mut exit, "198.51.100.1:1", &cell)) else { panic!() };
    assert_eq!(
        (to, payload.as_slice(), exit.to_enable.as_slice()),
        (address("8.8.8.8:80"), b"d1:y1:qe".as_slice(), &[THEIRS][..])
    );

    exit.exit_received(THEIRS, to, b"d1:y1:re");
    let (_, _, cell) = one(sent(&mut exit));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.2:2", &cell));
    let (Via::Client(1), to, answer) = one(passed(&mut client, "198.51.100.1:1", &cell)) else { panic!() };
    assert_eq!((to, answer), (address("127.0.0.1:5"), request(b"d1:y1:re")));
}

/// One end of an end-to-end circuit of no hop but the rendezvous point, and the client behind it.
fn end(sends: Direction, linked: bool) -> Core {
    let mut core = core(0);
    let circuit = Circuit {
        end_to_end: linked.then(|| (keys(9), sends)),
        relay_early_count: 8.into(),
        known_as: OURS,
        ..Circuit::new(address("198.51.100.1:1"), vec![keys(1)], 1, Purpose::EndToEnd)
    };
    core.routes.set_circuit(OURS, circuit);
    core.routes.clients.add(1, Association { lane: 1, client: address("127.0.0.1:5") });
    core
}

/// A request for the other end: the circuit's id as an address, and the port that says so.
fn to_other_end(payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 1], OURS.to_be_bytes().as_slice(), &1024u16.to_be_bytes(), payload].concat()
}

#[test]
fn ends_meet_by_the_address_of_their_circuit() {
    let (mut downloader, mut seeder) = (end(Direction::Backward, true), end(Direction::Forward, true));
    downloader.client_received(1, address("127.0.0.1:5"), &to_other_end(b"hello"));
    let (Via::Tunnel, _, mut cell) = one(sent(&mut downloader)) else { panic!() };
    // What a rendezvous point does: it takes a layer off and puts the other circuit's on.
    let rendezvous = keys(1);
    let sealed = 0..cell.len() - 29;
    let text = rendezvous.open(Direction::Forward, &mut cell[29..], sealed).unwrap();
    rendezvous.seal(Direction::Backward, &mut cell[29..], text).unwrap();
    let (Via::Client(1), to, datagram) = one(passed(&mut seeder, "198.51.100.1:1", &cell)) else { panic!() };
    assert_eq!((to, datagram), (address("127.0.0.1:5"), to_other_end(b"hello")));
}

#[test]
fn before_it_is_linked_nothing_goes_over_an_end_to_end_circuit() {
    let mut downloader = end(Direction::Backward, false);
    downloader.client_received(1, address("127.0.0.1:5"), &to_other_end(b"hello"));
    downloader.frame_received(OURS, &to_other_end(b"")[3..], b"hello");
    assert!(sent(&mut downloader).is_empty());
    assert_eq!(downloader.counters.get(DropReason::NoCircuit), 1);
    assert_eq!(downloader.counters.get(DropReason::CircuitNotReady), 1);
}

#[test]
fn ipv6_destinations_are_met_over_circuits_that_reach_them_where_there_are_any() {
    let mut routes = client().routes;
    routes.set_circuit(THEIRS, Circuit { reaches_ipv6: true, ..circuit(&[3]) });
    let met = |routes: &mut packet_engine::routes::Routes, kind: u8, bytes: usize| {
        let destinations = (0..20).map(|last| [&[kind][..], &vec![last; bytes], &[0, 80]].concat());
        let mut ids: Vec<_> = destinations.filter_map(|to| routes.circuit_for(1, &to, 1)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let mut both = [OURS, THEIRS];
    both.sort_unstable();
    assert_eq!(met(&mut routes, 1, 4), both);
    assert_eq!(met(&mut routes, 4, 16), [THEIRS]);
    routes.remove_circuit(THEIRS);
    assert_eq!(met(&mut routes, 4, 16), [OURS]);
}

#[test]
fn messages_for_an_exit_come_from_its_previous_hop_and_so_many_a_second() {
    let (mut client, mut relay, mut exit) = (client(), relay(), exit());
    exit.gate.now_ns = 1_000_000_000_000;
    client.routes.circuits[&OURS].relay_early_count.set(8);
    let mut message = || {
        client.send_cell(address("198.51.100.9:9"), OURS, false, &[6, 1, 2]);
        let (_, _, cell) = one(sent(&mut client));
        one(passed(&mut relay, "198.51.100.9:9", &cell)).2
    };
    passed(&mut exit, "203.0.113.9:1", &message());
    assert_eq!((exit.events.len(), exit.counters.get(DropReason::ExitForeignSource)), (0, 1));
    for _ in 0..2_500 {
        passed(&mut exit, "198.51.100.1:1", &message());
    }
    assert_eq!(exit.events.len() as u64 + exit.counters.get(DropReason::ExitTooManyMessages), 2_500);
    assert!((1_000..=1_001).contains(&exit.events.len()), "{}", exit.events.len());
}

#[test]
fn no_exit_hears_of_end_to_end_addresses_nor_gives_itself_out_for_one() {
    let mut client = client();
    client.client_received(1, address("127.0.0.1:5"), &to_other_end(b"hello"));
    assert!(sent(&mut client).is_empty());
    assert_eq!(client.counters.get(DropReason::NoCircuit), 1);

    let (mut relay, mut exit) = (relay(), announced_exit());
    exit.exit_received(THEIRS, address("9.9.9.9:1024"), b"d1:y1:re");
    let (_, _, cell) = one(sent(&mut exit));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.2:2", &cell));
    assert!(passed(&mut client, "198.51.100.1:1", &cell).is_empty());
    assert_eq!(client.counters.get(DropReason::CircuitForeignSource), 1);
}

#[test]
fn what_comes_over_a_circuit_of_no_client_is_for_python() {
    let (mut client, mut relay, mut exit) = (client(), relay(), exit());
    client.client_received(1, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    let (_, _, cell) = one(sent(&mut client));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell));
    let (_, to, _) = one(passed(&mut exit, "198.51.100.1:1", &cell));
    exit.exit_received(THEIRS, to, b"d1:y1:re");
    let (_, _, cell) = one(sent(&mut exit));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.2:2", &cell));
    client.routes.circuits.get_mut(&OURS).unwrap().purpose = Purpose::Other;
    assert!(passed(&mut client, "198.51.100.1:1", &cell).is_empty());
    assert_eq!(client.take_events().filter(|event| matches!(event, Event::Packet { .. })).count(), 1);
}

#[test]
fn nothing_unasked_reaches_a_circuit_that_has_told_nobody_where_it_is_found() {
    let (mut client, mut relay, mut exit) = (client(), relay(), exit());
    let mut announce = vec![7; 98];
    announce.splice(8..12, [0, 0, 0, 1]);
    for (payload, come) in [(b"d1:y1:qe".as_slice(), 0), (&announce, 1)] {
        client.client_received(1, address("127.0.0.1:5"), &request(payload));
        let (_, _, cell) = one(sent(&mut client));
        let (_, _, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell));
        passed(&mut exit, "198.51.100.1:1", &cell);
        exit.exit_received(THEIRS, address("9.9.9.9:80"), b"d1:y1:re");
        assert_eq!(sent(&mut exit).len(), come);
        exit.exit_received(THEIRS, address("8.8.8.8:81"), b"d1:y1:re");
        assert_eq!(sent(&mut exit).len(), 1); // it was sent to, whatever the port
    }
    assert_eq!(exit.counters.get(DropReason::ExitStranger), 1);
    assert_eq!(exit.counters.strangers(), (1, 8));
}

#[test]
fn an_introduction_point_that_was_asked_may_answer_from_elsewhere() {
    let mut exit = exit();
    let message = |id: u8| [&PREFIX[..], &[id, 0, 0]].concat();
    exit.exit_received(THEIRS, address("9.9.9.9:80"), &message(14));
    assert!(sent(&mut exit).is_empty()); // nobody was asked
    exit.exit_send(THEIRS, address("8.8.8.8:80"), &message(13));
    sent(&mut exit);
    for (id, come) in [(14, 1), (18, 1), (13, 0), (17, 0), (1, 0)] {
        exit.gate.now_ns += LATER_NS;
        exit.exit_received(THEIRS, address("9.9.9.9:80"), &message(id));
        assert_eq!(sent(&mut exit).len(), come, "{id}");
    }
    exit.gate.now_ns += LATER_NS;
    for _ in 0..1000 {
        exit.exit_received(THEIRS, address("9.9.9.9:80"), &message(14));
    }
    assert!((10..=11).contains(&sent(&mut exit).len()));
}

/// What the exit gets from an address outside comes back over the circuit to the client.
fn back(origin: &str, payload: &[u8]) -> (Core, Vec<(Via, SocketAddr, Vec<u8>)>) {
    let (mut client, mut relay, mut exit) = (client(), relay(), announced_exit());
    client.client_received(1, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    let (_, _, cell) = one(sent(&mut client));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell));
    passed(&mut exit, "198.51.100.1:1", &cell);
    client.routes.announce(OURS);
    exit.exit_received(THEIRS, address(origin), payload);
    let (_, _, cell) = one(sent(&mut exit));
    let (_, _, cell) = one(passed(&mut relay, "198.51.100.2:2", &cell));
    let come = passed(&mut client, "198.51.100.1:1", &cell);
    (client, come)
}

#[test]
fn over_a_circuit_that_is_announced_who_was_asked_meets_the_client_and_strangers_python() {
    let (_, come) = back("8.8.8.8:80", b"d1:y1:re");
    assert!(matches!(one(come), (Via::Client(1), _, _)));
    let (mut client, come) = back("9.9.9.9:80", b"d1:y1:re");
    assert!(come.is_empty());
    assert_eq!(client.take_events().filter(|event| matches!(event, Event::Packet { .. })).count(), 1);
}

#[test]
fn a_stranger_that_is_pinned_is_answered_over_the_circuit_that_it_came_by() {
    let (mut client, _) = back("9.9.9.9:80", b"d1:y1:re");
    let stranger = [1, 9, 9, 9, 9, 0, 80];
    assert_eq!(client.routes.circuit_for(1, &stranger, 1), Some(OURS)); // there is no other
    client.routes.pin(1, &stranger, OURS + 1);
    client.routes.pin(2, &stranger, OURS);
    client.routes.pin(1, &stranger, OURS);
    assert!(!client.routes.is_stranger(OURS, Destination::Ip(address("9.9.9.9:80")), LATER_NS).unwrap());
    assert!(client.routes.is_stranger(OURS, Destination::Ip(address("9.9.9.9:81")), LATER_NS).unwrap());
}

#[test]
fn strangers_come_so_many_a_second() {
    let (mut client, _) = back("9.9.9.9:80", b"d1:y1:re");
    let stranger = Destination::Ip(address("9.9.9.9:81"));
    let come = (0..2000).filter(|_| client.routes.is_stranger(OURS, stranger, LATER_NS).is_ok()).count();
    assert!((500..=502).contains(&come), "{come}");
    assert_eq!(client.routes.is_stranger(OURS, stranger, LATER_NS), Err(DropReason::StrangersTooFast));
}

#[test]
fn a_relay_lets_messages_of_hidden_services_out_and_no_others() {
    for (id, reason) in [(13, None), (14, None), (17, None), (18, None), (1, Some(DropReason::ExitContentRefused))] {
        let (mut client, mut relay, mut exit) = (client(), relay(), exit());
        exit.settings.policy.peer_flags = 1;
        let message = [PREFIX.as_slice(), &[id], b"x"].concat();
        client.client_received(1, address("127.0.0.1:5"), &request(&message));
        let (_, _, cell) = one(sent(&mut client));
        let (_, _, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell));
        assert_eq!(passed(&mut exit, "198.51.100.1:1", &cell).len(), usize::from(reason.is_none()));
        assert_eq!(reason.map_or(0, |reason| exit.counters.get(reason)), u64::from(reason.is_some()));
    }
}

#[test]
fn what_may_not_leave_does_not_and_is_named() {
    for (destination, payload, reason) in [
        ([10, 0, 0, 1], b"d1:y1:qe".as_slice(), DropReason::ExitDestinationRefused),
        ([8, 8, 8, 8], b"GET / HTTP/1.1", DropReason::ExitContentRefused),
    ] {
        let (mut client, mut relay, mut exit) = (client(), relay(), exit());
        let mut datagram = request(payload);
        datagram[4..8].copy_from_slice(&destination);
        client.client_received(1, address("127.0.0.1:5"), &datagram);
        let (_, _, cell) = one(sent(&mut client));
        let (_, _, cell) = one(passed(&mut relay, "198.51.100.9:9", &cell));
        assert!(passed(&mut exit, "198.51.100.1:1", &cell).is_empty());
        assert_eq!(exit.counters.get(reason), 1);
    }
}

#[test]
fn the_first_packet_of_utp_that_would_travel_as_fragments_does_not() {
    let utp = |bytes: usize| [&[0x01, 0][..], &vec![0; bytes - 2]].concat();
    for (bytes, left) in [(1332, 1), (1333, 0)] {
        let (mut client, mut exit) = (client(), exit());
        exit.exit_send(THEIRS, address("8.8.8.8:80"), b"d1:y1:qe");
        assert_eq!(sent(&mut exit).len(), 1);
        client.client_received(1, address("127.0.0.1:5"), &request(&utp(bytes)));
        assert_eq!(sent(&mut client).len(), left);
        exit.exit_received(THEIRS, address("8.8.8.8:80"), &utp(bytes));
        assert_eq!(sent(&mut exit).len(), left);
        let dropped = 1 - left as u64;
        assert_eq!(client.counters.get(DropReason::DatagramTooLarge), dropped);
        assert_eq!(exit.counters.get(DropReason::DatagramTooLarge), dropped);
        // uTP sends the same packet again.
        client.client_received(1, address("127.0.0.1:5"), &request(&utp(bytes)));
        exit.exit_received(THEIRS, address("8.8.8.8:80"), &utp(bytes));
        assert_eq!((sent(&mut client).len(), sent(&mut exit).len()), (1, 1));
    }
    let mut client = client();
    client.client_received(1, address("127.0.0.1:5"), &request(&[b"d1:y", &[b'x'; 1400][..], b"e"].concat()));
    assert_eq!(sent(&mut client).len(), 1);
}

#[test]
fn relay_early_is_counted() {
    let (mut client, mut relay) = (client(), relay());
    for _ in 0..20 {
        client.client_received(1, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    }
    let cells = sent(&mut client).into_iter();
    let number: usize = cells.map(|(_, _, cell)| passed(&mut relay, "198.51.100.9:9", &cell).len()).sum();
    // Eight cells carry the flag; the relay, which counts from the extend on, passes one less.
    assert_eq!(relay.counters.get(DropReason::CellRelayEarlyTooMany), 1);
    assert_eq!(number, 19);
}

#[test]
fn only_its_client_uses_an_association() {
    let mut client = client();
    client.client_received(1, address("127.0.0.1:6"), &request(b"d1:y1:qe"));
    client.client_received(2, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    assert!(sent(&mut client).is_empty());
    assert_eq!(client.counters.get(DropReason::Socks5ForeignSource), 2);
}

#[test]
fn layers_are_those_of_py_ipv8() {
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    };
    let mut seen = 0;
    for line in include_str!("../../../tests/packet_engine/layers.txt").lines().filter(|line| !line.starts_with('#')) {
        let [key, salt, counter, plain, layer] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let (key, salt, plain, layer) = (hex(key), hex(salt), hex(plain.trim_matches('-')), hex(layer));
        let counter: u64 = counter.parse().unwrap();
        let half = HalfParts { key: &key, salt: &salt, counter: counter - 1 };
        let keys = SessionKeys::new(&half, &half).unwrap();
        let mut buffer = vec![0; COUNTER_BYTES];
        buffer.extend_from_slice(&plain);
        buffer.resize(buffer.len() + TAG_BYTES, 0);
        let message = COUNTER_BYTES..COUNTER_BYTES + plain.len();
        assert_eq!(keys.seal(Direction::Forward, &mut buffer, message.clone()), Some(0..layer.len()));
        assert_eq!(buffer, layer);
        assert_eq!(keys.open(Direction::Forward, &mut buffer, 0..layer.len()), Ok(message.clone()));
        assert_eq!(buffer[message], plain);
        seen += 1;
    }
    assert!(seen >= 4);
}

/// Valid cells of every kind, to be bent.
fn valid_cells() -> Vec<Vec<u8>> {
    let (mut client, mut relay, mut exit) = (client(), relay(), announced_exit());
    let mut cells = vec![];
    client.client_received(1, address("127.0.0.1:5"), &request(b"d1:y1:qe"));
    client.send_cell(address("198.51.100.1:1"), OURS, true, &[2, 0, 0]);
    client.send_cell(address("198.51.100.1:1"), OURS, false, &[6, 0, 7]);
    cells.extend(sent(&mut client).into_iter().map(|(_, _, cell)| cell));
    let relayed: Vec<_> = cells.iter().flat_map(|cell| passed(&mut relay, "198.51.100.9:9", cell)).collect();
    cells.extend(relayed.into_iter().map(|(_, _, cell)| cell));
    exit.exit_received(THEIRS, address("8.8.8.8:80"), b"d1:y1:re");
    cells.extend(sent(&mut exit).into_iter().map(|(_, _, cell)| cell));
    cells
}

proptest! {
    #[test]
    fn nothing_a_stranger_sends_panics_and_everything_is_accounted_for(
        which in 0usize..5,
        cut in 0usize..200,
        bends in prop::collection::vec((0usize..200, any::<u8>()), 0..4),
        role in 0usize..3,
    ) {
        let cells = valid_cells();
        let mut cell = cells[which % cells.len()].clone();
        cell.truncate(cell.len().saturating_sub(cut / 4));
        for (at, byte) in bends {
            let at = at % cell.len().max(1);
            if let Some(place) = cell.get_mut(at) { *place = byte; }
        }
        let mut node = [client, relay, exit][role]();
        let left = passed(&mut node, "198.51.100.1:1", &cell).len();
        let dropped: u64 = node.counters.all().map(|(_, number)| number).sum();
        let events = node.take_events().filter(|event| matches!(event, Event::Packet { .. })).count();
        prop_assert_eq!(dropped as usize + left + events, 1);
    }

    #[test]
    fn nothing_a_client_sends_panics(datagram in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..6) {
        let mut datagram = datagram;
        if let [_, _, fragment, atyp, ..] = datagram.as_mut_slice() { (*fragment, *atyp) = (0, kind); }
        let mut node = client();
        node.client_received(1, address("127.0.0.1:5"), &datagram);
        let dropped: u64 = node.counters.all().map(|(_, number)| number).sum();
        prop_assert_eq!(dropped as usize + sent(&mut node).len(), 1);
    }
}

#[test]
fn one_caller_at_two_lanes_is_known_by_numbers_that_have_nothing_in_common() {
    let mut core = core(0);
    let there = |lane: u32| Circuit::new(address("198.51.100.1:1"), vec![keys(1)], lane, Purpose::Data);
    let (one, other) = (0x0300_0001, 0x0300_0002); // of one child
    core.routes.set_circuit(one, there(1));
    core.routes.set_circuit(other, there(2));
    let (mut same_first_byte, mut leads_there) = (0, 0);
    for number in 0..1000_u32 {
        let from = std::net::IpAddr::from(std::net::Ipv4Addr::from(0x0800_0000 | number));
        let known = [one, other].map(|circuit| core.guest_number(circuit, from).unwrap());
        assert_eq!(core.guest_number(one, from), Some(known[0]), "he is known when he comes again");
        assert_ne!(known[0], known[1]);
        same_first_byte += u32::from(known[0] >> 24 == known[1] >> 24);
        let steering = Steering::of(&[0; SECRET_BYTES], 1);
        assert_eq!(steering.slot_of(known[0]), slot_of_circuit(one));
        leads_there += u32::from(steering.slot_of(known[1]) == slot_of_circuit(one));
    }
    assert!(same_first_byte < 30 && leads_there < 30, "{same_first_byte}, {leads_there}: as by chance, of 1,000");
}
