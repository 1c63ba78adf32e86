//! A model of one uTP connection of libtorrent (BEP 29 with its settings), for what streams leave to a neighbour.
//!
//! It has LEDBAT's window over the one-way delay, with the target of 100 ms and the gain of 3,000 bytes that libtorrent
//! has, slow start until the first loss or the target, half a window at a loss at most once per round trip, and a
//! time-out after which the window is one packet. Each packet is acknowledged. What is lost is counted as not received
//! and never sent again, which changes no rate.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::traffic::{End, Flow, Outcome, Outgoing};

const PACKET_BYTES: usize = 1200;
const ACK_BYTES: usize = 26;
const TARGET: Duration = Duration::from_millis(100);
const GAIN_BYTES: f64 = 3000.0;
const LEAST_TIMEOUT: Duration = Duration::from_millis(500);
/// So many packets after it must have arrived before one counts as lost.
const REORDERING: u64 = 3;

pub struct Utp {
    start: Instant,
    window: f64,
    is_slow_start: bool,
    next: u64,
    /// When each packet on its way was sent.
    in_flight: BTreeMap<u64, Instant>,
    least_delay: Duration,
    round_trip: Duration,
    last_cut: Instant,
    last_ack: Instant,
    received: u64,
}

impl Utp {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            window: 2.0 * PACKET_BYTES as f64,
            is_slow_start: true,
            next: 0,
            in_flight: BTreeMap::new(),
            least_delay: Duration::MAX,
            round_trip: Duration::from_millis(500),
            last_cut: start,
            last_ack: start,
            received: 0,
        }
    }

    fn fill_window(&mut self, now: Instant, out: &mut Outgoing) {
        while ((self.in_flight.len() + 1) * PACKET_BYTES) as f64 <= self.window.max(PACKET_BYTES as f64) {
            let mut packet = vec![0; PACKET_BYTES];
            for (place, byte) in packet.iter_mut().zip(self.next.to_be_bytes()) {
                *place = byte;
            }
            out.push(packet);
            self.in_flight.insert(self.next, now);
            self.next += 1;
        }
    }

    /// Handle the acknowledgement of a packet, with the delay that it had on its way to the client.
    fn acknowledged(&mut self, now: Instant, number: u64, delay: Duration) {
        let Some(sent) = self.in_flight.remove(&number) else { return };
        self.last_ack = now;
        let round_trip = now - sent;
        self.round_trip = (self.round_trip * 7 + round_trip) / 8;
        self.least_delay = self.least_delay.min(delay);
        let queueing = delay - self.least_delay;
        if self.is_slow_start {
            self.window += PACKET_BYTES as f64;
            self.is_slow_start = queueing < TARGET * 9 / 10;
        } else {
            let off_target = 1.0 - queueing.as_secs_f64() / TARGET.as_secs_f64();
            self.window += GAIN_BYTES * off_target.max(-1.0) * PACKET_BYTES as f64 / self.window;
        }
        let lost: Vec<u64> = self.in_flight.range(..number.saturating_sub(REORDERING)).map(|(key, _)| *key).collect();
        for key in &lost {
            self.in_flight.remove(key);
        }
        if !lost.is_empty() && now - self.last_cut > self.round_trip {
            self.window /= 2.0;
            self.is_slow_start = false;
            self.last_cut = now;
        }
        self.window = self.window.max(PACKET_BYTES as f64);
    }

    fn runs_out_at(&self) -> Instant {
        self.last_ack + LEAST_TIMEOUT.max(self.round_trip * 2)
    }
}

impl Flow for Utp {
    fn receive(&mut self, now: Instant, end: End, packet: &[u8], out: &mut Outgoing) -> Outcome<()> {
        let (number, rest) = packet.split_first_chunk().ok_or("a packet without a number")?;
        if end == End::Client {
            self.received += PACKET_BYTES as u64;
            let sent = self.in_flight.get(&u64::from_be_bytes(*number)).copied().unwrap_or(now);
            let delay_us = (now - sent).as_micros() as u64;
            let mut answer = [&number[..], &delay_us.to_be_bytes()].concat();
            answer.resize(ACK_BYTES, 0);
            out.push(answer);
            return Ok(());
        }
        let (delay_us, _) = rest.split_first_chunk().ok_or("an acknowledgement without a delay")?;
        self.acknowledged(now, u64::from_be_bytes(*number), Duration::from_micros(u64::from_be_bytes(*delay_us)));
        self.fill_window(now, out);
        Ok(())
    }

    fn timeout(&mut self, end: End) -> Option<Instant> {
        (end == End::Exit).then(|| if self.next == 0 { self.start } else { self.runs_out_at() })
    }

    fn work(&mut self, now: Instant, end: End, out: &mut Outgoing) -> Outcome<()> {
        if end == End::Client {
            return Ok(());
        }
        if self.next > 0 && now >= self.runs_out_at() {
            self.in_flight.clear();
            self.window = PACKET_BYTES as f64;
            (self.is_slow_start, self.last_ack) = (true, now);
        }
        self.fill_window(now, out);
        Ok(())
    }

    fn received(&self) -> Vec<u64> {
        vec![self.received]
    }
}
