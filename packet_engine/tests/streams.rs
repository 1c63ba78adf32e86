//! Streams between a client and an exit in memory, with real TCP connections on loopback at both ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet_engine::cell::STREAM_ID;
use packet_engine::clients::Association;
use packet_engine::core::{Core, Event, Settings};
use packet_engine::counters::{Counters, DropReason};
use packet_engine::exit_from::ExitFrom;
use packet_engine::keys::{Direction, HalfParts, SessionKeys};
use packet_engine::outbox::Via;
use packet_engine::policy::ExitPolicy;
use packet_engine::routes::{Circuit, Exit, Purpose};
use packet_engine::rules::{HTTPS, TCP};
use packet_engine::streams::quic::LinkId;
use packet_engine::streams::service::{Client, Service, Watch};
use proptest::prelude::*;

const PREFIX: [u8; 22] = *b"\x00\x02a community of 20 b.";
const ID: u32 = 0x0100_0001;
const BIT_TORRENT: u16 = 2;
const HANDSHAKE: &[u8; 20] = b"\x13BitTorrent protocol";
const LANE: u32 = 1;
/// The messages that fit a packet where it may have 1,280 bytes.
const NARROW: usize = 1127;
const HELD: Duration = Duration::from_millis(3);

/// Takes part in nobody's epoll: whoever was watched is told that something has changed, each time.
#[derive(Default)]
struct Everyone(RefCell<Vec<u32>>);

impl Watch for Everyone {
    fn watch(&self, _socket: &TcpStream, number: u32) -> io::Result<()> {
        self.0.borrow_mut().push(number);
        Ok(())
    }
}

struct Node {
    core: Core,
    service: Service,
    watched: Everyone,
    /// How much later it is for the node's limits than by the clock.
    later_ns: u64,
}

fn keys(seed: u8) -> Arc<SessionKeys> {
    let half = HalfParts { key: &[seed; 32], salt: &[seed; 4], counter: 0 };
    Arc::new(SessionKeys::new(&half, &half).unwrap())
}

impl Node {
    fn new(peer_flags: u16) -> Self {
        let settings = Settings {
            prefix: PREFIX,
            other_prefixes: Some(vec![]),
            max_relay_early: 8,
            no_crypto: vec![2, 3],
            policy: ExitPolicy { peer_flags, own_messages: false, allow_private: true },
            mask: 0,
        };
        Self {
            core: Core::new(settings, Arc::new(Counters::default())),
            service: Service::new(Arc::new(ExitFrom {
                ip: Ipv4Addr::UNSPECIFIED.into(),
                first_port: 0,
                last_port: 0,
                device: None,
            })),
            watched: Everyone::default(),
            later_ns: 0,
        }
    }

    fn client() -> Self {
        let mut node = Self::new(0);
        let circuit = Circuit {
            tries_streams: true,
            relay_early_count: 8.into(),
            ..Circuit::new(address("198.51.100.2:2"), vec![keys(1)], LANE, Purpose::Data)
        };
        node.core.routes.circuits.insert(ID, circuit);
        node.core.try_streams(ID);
        node.core.gate.now_ns = packet_engine::sys::monotonic_ns();
        node
    }

    fn exit(protocols: u8) -> Self {
        let mut node = Self::new(BIT_TORRENT);
        node.core.rules.protocols = Some(protocols);
        node.core.routes.exits.insert(ID, Exit::new(address("198.51.100.1:1"), keys(1), Arc::default()));
        node.core.gate.now_ns = packet_engine::sys::monotonic_ns();
        node
    }

    /// Let everything go on, and return the cells that leave.
    fn work(&mut self) -> Vec<Vec<u8>> {
        self.core.now = Instant::now();
        self.core.gate.now_ns = packet_engine::sys::monotonic_ns() + self.later_ns;
        let watched = std::mem::take(&mut *self.watched.0.borrow_mut());
        for number in watched {
            self.service.ready(&mut self.core, number);
            if self.service.has(number) {
                self.watched.0.borrow_mut().push(number);
            }
        }
        self.service.work(&mut self.core, &self.watched);
        self.core.transmit_streams();
        let mail = self.core.gate.outbox.sorted(&[]);
        let cells = mail.entries.iter().map(|entry| mail.bytes(entry).to_vec()).collect();
        self.core.gate.outbox.clear();
        cells
    }

    fn receive(&mut self, from: &str, cells: &[Vec<u8>]) {
        for cell in cells {
            self.core.tunnel_received(address(from), &mut cell.clone(), 0);
        }
    }

    fn open(&mut self, to: &[u8]) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).unwrap();
        }
        self.service.open(&mut self.core, &self.watched, asked(theirs, to));
        ours
    }
}

fn asked(socket: TcpStream, to: &[u8]) -> Client {
    Client { socket, lane: LANE, destination: to.to_vec(), early: vec![] }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn encoded(to: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = to.ip() else { panic!() };
    [&[1][..], &ip.octets(), &to.port().to_be_bytes()].concat()
}

struct Pair {
    client: Node,
    exit: Node,
    /// One in so many cells is lost; 0: none.
    lose_one_in: u64,
    /// One in so many cells comes HELD later, and so out of order; 0: none.
    hold_one_in: u64,
    held: [VecDeque<(Instant, Vec<u8>)>; 2],
    seed: u64,
    largest_cell: usize,
    /// The keys of the rendezvous point between the ends of an end-to-end circuit: the client's, the exit's.
    rendezvous: Option<[Arc<SessionKeys>; 2]>,
}

/// Take the layer of one end off, and put that of the other on.
fn turned(mut cell: Vec<u8>, from: &SessionKeys, to: &SessionKeys) -> Vec<u8> {
    let sealed = 0..cell.len() - 29;
    let text = from.open(Direction::Forward, &mut cell[29..], sealed).unwrap();
    to.seal(Direction::Backward, &mut cell[29..], text).unwrap();
    cell
}

impl Pair {
    fn new(protocols: u8) -> Self {
        Self {
            client: Node::client(),
            exit: Node::exit(protocols),
            lose_one_in: 0,
            hold_one_in: 0,
            held: Default::default(),
            seed: 1,
            largest_cell: 0,
            rendezvous: None,
        }
    }

    /// Whether what happens to one in so many happens now.
    fn is_hit(&mut self, one_in: u64) -> bool {
        // Numerical Recipes' generator.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        one_in != 0 && (self.seed >> 33).is_multiple_of(one_in)
    }

    /// Return the cells that arrive now of those that were sent in this direction.
    fn carried(&mut self, direction: usize, cells: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut arrived = Vec::new();
        for cell in cells {
            self.largest_cell = self.largest_cell.max(cell.len());
            if self.is_hit(self.lose_one_in) {
            } else if self.is_hit(self.hold_one_in) {
                self.held[direction].push_back((Instant::now() + HELD, cell));
            } else {
                arrived.push(cell);
            }
        }
        while self.held[direction].front().is_some_and(|(due, _)| *due <= Instant::now()) {
            arrived.extend(self.held[direction].pop_front().map(|(_, cell)| cell));
        }
        arrived
    }

    fn step(&mut self) {
        let there = self.client.work();
        let mut there = self.carried(0, there);
        if let Some([one, other]) = &self.rendezvous {
            there = there.into_iter().map(|cell| turned(cell, one, other)).collect();
        }
        self.exit.receive("198.51.100.1:1", &there);
        let back = self.exit.work();
        let mut back = self.carried(1, back);
        if let Some([one, other]) = &self.rendezvous {
            back = back.into_iter().map(|cell| turned(cell, other, one)).collect();
        }
        self.client.receive("198.51.100.2:2", &back);
    }

    fn until<T>(&mut self, mut is_so: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.step();
            if let Some(value) = is_so(self) {
                return value;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it never came");
        }
    }

    fn reply(&mut self, client: &mut TcpStream) -> u8 {
        self.until(|_| {
            let mut reply = [0; 10];
            match client.read(&mut reply) {
                Ok(10) => Some(reply),
                Ok(count) => panic!("a reply of {count} bytes"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => panic!("{error}"),
            }
        })[1]
    }

    /// A client connected through the exit to a server, which has accepted.
    fn connected(&mut self) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut client = self.client.open(&encoded(listener.local_addr().unwrap()));
        assert_eq!(self.reply(&mut client), 0);
        let (server, _) = self.until(|_| listener.accept().ok());
        server.set_nonblocking(true).unwrap();
        (client, server)
    }

    /// Move bytes from one socket to the other until it has all of them.
    fn moved(&mut self, from: &mut TcpStream, to: &mut TcpStream, data: &[u8]) -> Vec<u8> {
        let (mut sent, mut got) = (0, Vec::new());
        let mut buffer = vec![0; 1 << 16];
        self.until(|_| {
            if sent < data.len() {
                match from.write(&data[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            match to.read(&mut buffer) {
                Ok(0) => panic!("closed early"),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            (got.len() >= data.len()).then_some(())
        });
        got
    }

    /// What a socket's end looks like: None is an orderly one.
    fn end(&mut self, socket: &mut TcpStream) -> Option<ErrorKind> {
        self.until(|_| match socket.read(&mut [0; 100]) {
            Ok(0) => Some(None),
            Ok(count) => panic!("{count} bytes came"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Some(error.kind())),
        })
    }
}

fn data(bytes: usize) -> Vec<u8> {
    [&HANDSHAKE[..], &(0..bytes).map(|number| (number % 251) as u8).collect::<Vec<_>>()].concat()
}

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
fn a_name_is_looked_up_by_python() {
    let mut pair = Pair::new(TCP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = |name: &[u8]| [&[3, name.len() as u8], name, &port.to_be_bytes()].concat();
    let mut client = pair.client.open(&name(b"peer.example"));
    let asked = |pair: &mut Pair| {
        pair.until(|pair| {
            pair.exit.core.take_events().find_map(|event| match event {
                Event::Resolve { number, name } => Some((number, name)),
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
            ..Circuit::new(address(neighbour), vec![keys(seed)], LANE, Purpose::EndToEnd)
        };
        node.core.routes.exits.clear();
        node.core.quic.remove(LinkId::ours(ID));
        node.core.routes.circuits.insert(ID, circuit);
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
            Event::Guest { circuit_id } => Some(circuit_id),
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
