//! A client and an exit in memory, with real TCP connections on loopback at both ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, dead_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet_engine::core::{Core, Settings};
use packet_engine::counters::Counters;
use packet_engine::exit_from::ExitFrom;
use packet_engine::keys::{Direction, HalfParts, SessionKeys};
use packet_engine::policy::ExitPolicy;
use packet_engine::routes::{Circuit, Exit, Purpose};
use packet_engine::streams::bridge::Asked;
use packet_engine::streams::entries::{Client, Watch};
use packet_engine::streams::service::{Service, MAX_TRIES};

pub const PREFIX: [u8; 22] = *b"\x00\x02a community of 20 b.";
pub const ID: u32 = 0x0100_0001;
pub const BIT_TORRENT: u16 = 2;
pub const HANDSHAKE: &[u8; 20] = b"\x13BitTorrent protocol";
pub const LANE: u32 = 1;
/// The messages that fit a packet where it may have 1,280 bytes.
pub const NARROW: usize = 1127;
pub const HELD: Duration = Duration::from_millis(3);

/// Takes part in nobody's epoll: whoever was watched is told that something has changed, each time.
#[derive(Default)]
pub struct Everyone(pub RefCell<Vec<u32>>);

impl Watch for Everyone {
    fn watch(&self, _socket: &TcpStream, number: u32) -> io::Result<()> {
        self.0.borrow_mut().push(number);
        Ok(())
    }

    fn watch_door(&self, _listener: &TcpListener, _circuit_id: u32) -> io::Result<()> {
        Ok(())
    }
}

pub struct Node {
    pub core: Core,
    pub service: Service,
    pub watched: Everyone,
    /// How much later it is for the node's limits than by the clock.
    pub later_ns: u64,
}

pub fn keys(seed: u8) -> Arc<SessionKeys> {
    let half = HalfParts { key: &[seed; 32], salt: &[seed; 4], counter: 0 };
    Arc::new(SessionKeys::new(&half, &half).unwrap())
}

impl Node {
    pub fn new(peer_flags: u16) -> Self {
        let settings = Settings {
            prefix: PREFIX,
            other_prefixes: Some(vec![]),
            max_relay_early: 8,
            no_crypto: vec![2, 3],
            policy: ExitPolicy { peer_flags, own_messages: false, allow_private: true },
            end_secret: [0; 32],
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

    pub fn client() -> Self {
        let mut node = Self::new(0);
        let circuit = Circuit {
            tries_streams: true,
            relay_early_count: 8.into(),
            ..Circuit::new(address("198.51.100.2:2"), vec![keys(1)], LANE, Purpose::Data)
        };
        node.core.routes.set_circuit(ID, circuit);
        node.core.try_streams(ID);
        node.core.gate.now_ns = packet_engine::sys::monotonic_ns();
        node
    }

    pub fn exit(protocols: u8) -> Self {
        let mut node = Self::new(BIT_TORRENT);
        node.core.rules.protocols = Some(protocols);
        node.core.routes.exits.insert(ID, Exit::new(address("198.51.100.1:1"), keys(1), Arc::default()));
        node.core.gate.now_ns = packet_engine::sys::monotonic_ns();
        node
    }

    /// Let everything go on, and return the cells that leave.
    pub fn work(&mut self) -> Vec<Vec<u8>> {
        self.core.now = Instant::now();
        self.core.gate.now_ns = packet_engine::sys::monotonic_ns() + self.later_ns;
        let watched = std::mem::take(&mut *self.watched.0.borrow_mut());
        for number in watched {
            self.service.ready(&mut self.core, number);
            if self.service.has(number) {
                self.watched.0.borrow_mut().push(number);
            }
        }
        self.service.called(&mut self.core, &self.watched, ID);
        self.service.work(&mut self.core, &self.watched);
        self.core.transmit_streams();
        let mail = self.core.gate.outbox.sorted(&[]);
        let cells = mail.entries.iter().map(|entry| mail.bytes(entry).to_vec()).collect();
        self.core.gate.outbox.clear();
        cells
    }

    pub fn receive(&mut self, from: &str, cells: &[Vec<u8>]) {
        for cell in cells {
            self.core.tunnel_received(address(from), &mut cell.clone(), 0);
        }
    }

    pub fn open(&mut self, to: &[u8]) -> TcpStream {
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

pub fn asked(socket: TcpStream, to: &[u8]) -> Client {
    Client { socket, asked: Asked { lane: LANE, destination: to.to_vec(), early: vec![], tries: MAX_TRIES } }
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn encoded(to: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = to.ip() else { panic!() };
    [&[1][..], &ip.octets(), &to.port().to_be_bytes()].concat()
}

pub struct Pair {
    pub client: Node,
    pub exit: Node,
    /// One in so many cells is lost; 0: none.
    pub lose_one_in: u64,
    /// One in so many cells comes HELD later, and so out of order; 0: none.
    pub hold_one_in: u64,
    pub held: [VecDeque<(Instant, Vec<u8>)>; 2],
    pub seed: u64,
    pub largest_cell: usize,
    /// The keys of the rendezvous point between the ends of an end-to-end circuit: the client's, the exit's.
    pub rendezvous: Option<[Arc<SessionKeys>; 2]>,
}

/// Take the layer of one end off, and put that of the other on.
pub fn turned(mut cell: Vec<u8>, from: &SessionKeys, to: &SessionKeys) -> Vec<u8> {
    let sealed = 0..cell.len() - 29;
    let text = from.open(Direction::Forward, &mut cell[29..], sealed).unwrap();
    to.seal(Direction::Backward, &mut cell[29..], text).unwrap();
    cell
}

impl Pair {
    pub fn new(protocols: u8) -> Self {
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
    pub fn is_hit(&mut self, one_in: u64) -> bool {
        // Numerical Recipes' generator.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        one_in != 0 && (self.seed >> 33).is_multiple_of(one_in)
    }

    /// Return the cells that arrive now of those that were sent in this direction.
    pub fn carried(&mut self, direction: usize, cells: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
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

    pub fn step(&mut self) {
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

    pub fn until<T>(&mut self, mut is_so: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.step();
            if let Some(value) = is_so(self) {
                return value;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it never came");
        }
    }

    pub fn reply(&mut self, client: &mut TcpStream) -> u8 {
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
    pub fn connected(&mut self) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut client = self.client.open(&encoded(listener.local_addr().unwrap()));
        assert_eq!(self.reply(&mut client), 0);
        let (server, _) = self.until(|_| listener.accept().ok());
        server.set_nonblocking(true).unwrap();
        (client, server)
    }

    /// Move bytes from one socket to the other until it has all of them.
    pub fn moved(&mut self, from: &mut TcpStream, to: &mut TcpStream, data: &[u8]) -> Vec<u8> {
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
    pub fn end(&mut self, socket: &mut TcpStream) -> Option<ErrorKind> {
        self.until(|_| match socket.read(&mut [0; 100]) {
            Ok(0) => Some(None),
            Ok(count) => panic!("{count} bytes came"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Some(error.kind())),
        })
    }
}

pub fn data(bytes: usize) -> Vec<u8> {
    [&HANDSHAKE[..], &(0..bytes).map(|number| (number % 251) as u8).collect::<Vec<_>>()].concat()
}
