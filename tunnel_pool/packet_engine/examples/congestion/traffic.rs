//! Flows that share a path, and the clock that drives them: no socket, no thread, no waiting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::time::{Duration, Instant};

use crate::link::{Link, Path};

/// What IPv4, UDP, the cell's header and two hops' seals add to a packet.
const OVERHEAD_BYTES: usize = 28 + 29 + 48;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Exit,
    Client,
}

/// Packets that one end sends now.
pub type Outgoing = Vec<Vec<u8>>;
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// A sender of data at the exit and its receiver at the client.
pub trait Flow {
    /// Handle a packet that has arrived at this end.
    fn receive(&mut self, now: Instant, end: End, packet: &[u8], out: &mut Outgoing) -> Outcome<()>;
    /// When this end wants `work` to be called.
    fn timeout(&mut self, end: End) -> Option<Instant>;
    /// Do what is due at this end.
    fn work(&mut self, now: Instant, end: End, out: &mut Outgoing) -> Outcome<()>;
    /// The bytes that the client has got so far, of each stream.
    fn received(&self) -> Vec<u64>;
}

type Arrival = (Instant, u64, usize, End, Vec<u8>);

pub struct Traffic {
    now: Instant,
    flows: Vec<Box<dyn Flow>>,
    /// From the exit, and from the client.
    links: [Link; 2],
    arrivals: BinaryHeap<Reverse<Arrival>>,
    sent: u64,
}

impl Traffic {
    pub fn new(start: Instant, path: Path, flows: Vec<Box<dyn Flow>>) -> Self {
        let links = [Link::new(path, start, 1), Link::new(path, start, 2)];
        Self { now: start, flows, links, arrivals: BinaryHeap::new(), sent: 0 }
    }

    /// Let so much time pass; return the bytes that each stream of each flow got in it, and the mean wait in the queue.
    pub fn run(&mut self, time: Duration) -> Outcome<(Vec<Vec<u64>>, f64)> {
        let before: Vec<Vec<u64>> = self.flows.iter().map(|flow| flow.received()).collect();
        self.links[0].forget();
        let end = self.now + time;
        for flow in 0..self.flows.len() {
            self.work(flow, End::Client)?;
            self.work(flow, End::Exit)?;
        }
        while self.step(end)? {}
        self.now = end;
        let got = self.flows.iter().zip(before).map(|(flow, before)| {
            let before = before.into_iter().chain(std::iter::repeat(0));
            flow.received().into_iter().zip(before).map(|(after, before)| after - before).collect()
        });
        Ok((got.collect(), self.links[0].mean_wait_ms()))
    }

    /// Do what is next before `end`; return whether there was anything.
    fn step(&mut self, end: Instant) -> Outcome<bool> {
        let ends = [End::Exit, End::Client];
        let timers = self.flows.iter_mut().enumerate();
        let timer = timers
            .flat_map(|(number, flow)| ends.map(|end| flow.timeout(end).map(|at| (at, number, end))))
            .flatten()
            .min();
        let arrives = self.arrivals.peek().map(|Reverse(arrival)| arrival.0);
        match (arrives, timer) {
            (Some(at), timer) if at < end && timer.is_none_or(|(due, ..)| at <= due) => {
                let Some(Reverse((at, _, number, end, packet))) = self.arrivals.pop() else { return Ok(false) };
                self.now = at;
                let mut out = Outgoing::new();
                if let Some(flow) = self.flows.get_mut(number) {
                    flow.receive(at, end, &packet, &mut out)?;
                }
                self.send(number, end, out);
            }
            (_, Some((due, number, at))) if due < end => {
                self.now = self.now.max(due);
                self.work(number, at)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn work(&mut self, number: usize, end: End) -> Outcome<()> {
        let mut out = Outgoing::new();
        if let Some(flow) = self.flows.get_mut(number) {
            flow.work(self.now, end, &mut out)?;
        }
        self.send(number, end, out);
        Ok(())
    }

    fn send(&mut self, number: usize, from: End, packets: Outgoing) {
        let [from_exit, from_client] = &mut self.links;
        let (link, to) = match from {
            End::Exit => (from_exit, End::Client),
            End::Client => (from_client, End::Exit),
        };
        for packet in packets {
            if let Some(at) = link.arrival(self.now, packet.len() + OVERHEAD_BYTES) {
                self.sent += 1;
                self.arrivals.push(Reverse((at, self.sent, number, to, packet)));
            }
        }
    }
}
