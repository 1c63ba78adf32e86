//! A fuzz target (libFuzzer): who is at the other end of a circuit sends what he likes in the cells of a stream's connection.
//!
//! The first byte of the input says whether a client does so to an exit, or an exit to a client. The rest is a list of
//! actions. Most are frames of QUIC in packets whose number and tag are right, so that they reach the state machine;
//! others are messages as they are. Meanwhile an honest pair shares the attacked node, and has bytes echoed: they have to
//! come back whole. Run by `make fuzz`.
#![no_main]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use packet_engine::cell::STREAM_ID;
use packet_engine::streams::quic::{Event, LinkId, Quic, Read, StreamKey};

const LARGEST_MESSAGE: usize = 1371;
const MAX_STREAMS: u32 = 16;
const HOSTILE: u32 = 1;
const HONEST: u32 = 2;
const ROUNDS: usize = 200;
/// Numbers that the hostile node's own connection has not used by then.
const FIRST_NUMBER: u32 = 1000;

/// One side of circuits: the client of all its circuits, or their exit.
struct Node {
    quic: Quic,
    is_client: bool,
    /// The streams that others have opened: an exit's are of those who call a client.
    opened: HashSet<StreamKey>,
}

impl Node {
    fn new(is_client: bool) -> Self {
        Self { quic: Quic::new(if is_client { 0 } else { MAX_STREAMS }), is_client, opened: HashSet::new() }
    }

    fn link(&self, circuit: u32) -> LinkId {
        if self.is_client {
            LinkId::ours(circuit)
        } else {
            LinkId::exit(circuit)
        }
    }

    fn receive(&mut self, circuit: u32, message: &[u8], now: Instant) {
        self.quic.received(self.link(circuit), message, (!self.is_client).then_some(LARGEST_MESSAGE), now);
    }

    /// Go on, and return the messages that leave, with their circuits; what others have opened is echoed.
    fn work(&mut self, now: Instant) -> Vec<(u32, Vec<u8>)> {
        let mut events = vec![];
        self.quic.poll(now, &mut events);
        for event in events {
            match event {
                Event::Opened(key) => {
                    self.opened.insert(key);
                    self.echo(key);
                }
                Event::Readable(key) if self.opened.contains(&key) => self.echo(key),
                Event::Lost(link) => {
                    self.opened.retain(|key| key.link != link);
                    self.quic.remove(link);
                }
                _ => {}
            }
        }
        let mut messages = vec![];
        self.quic.transmit(now, |link, message| {
            let mut buffer = vec![0; message.len()];
            message.write(&mut buffer);
            messages.push((link.circuit_id, buffer));
            true
        });
        messages
    }

    fn echo(&mut self, key: StreamKey) {
        loop {
            match self.quic.read(key, 1 << 16) {
                Read::Data(mut data) => drop(self.quic.write(key, &mut data)),
                Read::End => return self.quic.finish(key),
                Read::Nothing | Read::Reset => return,
            }
        }
    }

    /// Ask for an echo on a stream of its own.
    fn ask(&mut self, circuit: u32, asked: &[u8]) -> StreamKey {
        let Some(key) = self.quic.open(self.link(circuit)) else { panic!("no stream") };
        self.quic.write(key, &mut Bytes::copy_from_slice(asked));
        self.quic.finish(key);
        key
    }
}

/// The node that is attacked, and the two at the other ends of its circuits: who attacks, and an honest one.
struct World {
    attacked: Node,
    others: [(u32, Node); 2],
    now: Instant,
}

impl World {
    fn new(attacks_client: bool) -> Self {
        let attacked = Node::new(attacks_client);
        let others = [HOSTILE, HONEST].map(|circuit| (circuit, Node::new(!attacks_client)));
        let mut world = Self { attacked, others, now: Instant::now() };
        let now = world.now;
        for circuit in [HOSTILE, HONEST] {
            let client = world.client(circuit);
            client.quic.connect(LinkId::ours(circuit), LARGEST_MESSAGE, MAX_STREAMS, now);
        }
        for _ in 0..10 {
            world.exchange();
        }
        world
    }

    /// The client of a circuit.
    fn client(&mut self, circuit: u32) -> &mut Node {
        let [(_, hostile), (_, honest)] = &mut self.others;
        match (self.attacked.is_client, circuit) {
            (true, _) => &mut self.attacked,
            (false, HOSTILE) => hostile,
            (false, _) => honest,
        }
    }

    /// Carry everybody's messages to the other side.
    fn exchange(&mut self) {
        self.now += Duration::from_millis(1);
        for (circuit, other) in &mut self.others {
            for (_, message) in other.work(self.now) {
                self.attacked.receive(*circuit, &message, self.now);
            }
        }
        for (circuit, message) in self.attacked.work(self.now) {
            if let Some((_, other)) = self.others.iter_mut().find(|(known, _)| *known == circuit) {
                other.receive(circuit, &message, self.now);
            }
        }
    }
}

/// A packet with a short header (RFC 9000, 17.3.1) whose number has four bytes, and the tag of docs/WIRE.md.
fn packet(number: u32, frames: &[u8]) -> Vec<u8> {
    let tag = [(number >> 16) as u8, (number >> 8) as u8, number as u8, 0];
    [&[STREAM_ID, 0, 0x43][..], &number.to_be_bytes(), frames, &tag].concat()
}

fuzz_target!(|input: &[u8]| {
    let Some((role, actions)) = input.split_first() else { return };
    let attacks_client = role % 2 == 1;
    let mut world = World::new(attacks_client);
    let asked = b"what is asked".repeat(100);
    let key = world.client(HONEST).ask(HONEST, &asked);
    // A client that is attacked has a stream there, which waits for what comes.
    let of_hostile = attacks_client.then(|| world.attacked.ask(HOSTILE, &asked));

    for (number, action) in (FIRST_NUMBER..).zip(actions.split(|byte| *byte == 0xff)).take(ROUNDS) {
        let message = match action.split_first() {
            Some((kind, message)) if *kind % 4 == 0 => [&[STREAM_ID][..], message].concat(),
            Some((_, frames)) => packet(number, frames),
            None => vec![],
        };
        world.attacked.receive(HOSTILE, &message, world.now);
        world.exchange();
        if let Some(key) = of_hostile {
            world.attacked.quic.read(key, 1 << 16);
        }
        assert!(world.attacked.quic.open_streams(world.attacked.link(HOSTILE)) <= u64::from(MAX_STREAMS));
    }

    let mut got = vec![];
    for _ in 0..ROUNDS {
        match world.client(HONEST).quic.read(key, 1 << 16) {
            Read::Data(data) => got.extend_from_slice(&data),
            Read::Nothing => world.exchange(),
            Read::End | Read::Reset => break,
        }
    }
    assert!(got == asked, "an honest node's stream was disturbed");
});
