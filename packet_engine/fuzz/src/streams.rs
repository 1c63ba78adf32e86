//! A fuzz target (libFuzzer): a client sends an exit what it likes in the cells of a stream's connection.
//!
//! The input is a list of actions. Most are frames of QUIC in packets whose number and tag are right, so that they reach
//! the state machine; others are messages as they are. Meanwhile another client of the exit has bytes echoed: they have to
//! come back whole. Run by `make fuzz`.
#![no_main]

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
/// Numbers that the hostile client's own connection has not used by then.
const FIRST_NUMBER: u32 = 1000;

/// A client and its circuit's id, with what its exit has sent it.
struct Client {
    quic: Quic,
    circuit: u32,
}

struct World {
    exit: Quic,
    clients: [Client; 2],
    now: Instant,
    events: Vec<Event>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let clients = [HOSTILE, HONEST].map(|circuit| {
            let mut quic = Quic::new(0);
            quic.connect(LinkId::ours(circuit), LARGEST_MESSAGE, now);
            Client { quic, circuit }
        });
        let mut world = Self { exit: Quic::new(MAX_STREAMS), clients, now, events: vec![] };
        for _ in 0..10 {
            world.exchange();
        }
        world
    }

    /// Carry everybody's messages to the other side, and let the exit echo what it can read.
    fn exchange(&mut self) {
        self.now += Duration::from_millis(1);
        let mut ignored = vec![];
        for client in &mut self.clients {
            client.quic.poll(self.now, &mut ignored);
            for (_, message) in sent(&mut client.quic, self.now) {
                self.exit.received(LinkId::exit(client.circuit), &message, Some(LARGEST_MESSAGE), self.now);
            }
        }
        self.exit.poll(self.now, &mut self.events);
        for event in std::mem::take(&mut self.events) {
            if let Event::Opened(key) | Event::Readable(key) = event {
                self.echo(key);
            }
        }
        for (link, message) in sent(&mut self.exit, self.now) {
            if let Some(client) = self.clients.iter_mut().find(|client| client.circuit == link.circuit_id) {
                client.quic.received(LinkId::ours(link.circuit_id), &message, None, self.now);
            }
        }
    }

    fn echo(&mut self, key: StreamKey) {
        loop {
            match self.exit.read(key, 1 << 16) {
                Read::Data(mut data) => drop(self.exit.write(key, &mut data)),
                Read::End => return self.exit.finish(key),
                Read::Nothing | Read::Reset => return,
            }
        }
    }
}

fn sent(quic: &mut Quic, now: Instant) -> Vec<(LinkId, Vec<u8>)> {
    let mut messages = vec![];
    quic.transmit(now, |link, message| {
        let mut buffer = vec![0; message.len()];
        message.write(&mut buffer);
        messages.push((link, buffer));
        true
    });
    messages
}

/// A packet with a short header (RFC 9000, 17.3.1) whose number has four bytes, and the tag of docs/WIRE.md.
fn packet(number: u32, frames: &[u8]) -> Vec<u8> {
    let tag = [(number >> 16) as u8, (number >> 8) as u8, number as u8, 0];
    [&[STREAM_ID, 0, 0x43][..], &number.to_be_bytes(), frames, &tag].concat()
}

fuzz_target!(|input: &[u8]| {
    let mut world = World::new();
    let own = LinkId::ours(HONEST);
    let Some(key) = world.clients[1].quic.open(own) else { panic!("no stream") };
    let asked = b"what is asked".repeat(100);
    let mut rest = Bytes::from(asked.clone());
    world.clients[1].quic.write(key, &mut rest);
    world.clients[1].quic.finish(key);

    let link = LinkId::exit(HOSTILE);
    for (number, action) in (FIRST_NUMBER..).zip(input.split(|byte| *byte == 0xff)).take(ROUNDS) {
        let message = match action.split_first() {
            Some((kind, message)) if *kind % 4 == 0 => [&[STREAM_ID][..], message].concat(),
            Some((_, frames)) => packet(number, frames),
            None => vec![],
        };
        world.exit.received(link, &message, Some(LARGEST_MESSAGE), world.now);
        world.exchange();
        assert!(world.exit.open_streams(link) <= u64::from(MAX_STREAMS));
    }

    let mut got = vec![];
    for _ in 0..ROUNDS {
        match world.clients[1].quic.read(key, 1 << 16) {
            Read::Data(data) => got.extend_from_slice(&data),
            Read::Nothing => world.exchange(),
            Read::End | Read::Reset => break,
        }
    }
    assert!(got == asked, "another client's stream was disturbed");
});
