//! One direction of a path: a bottleneck with a queue, then a delay on which packets are lost at random.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

#[derive(Clone, Copy)]
pub struct Path {
    /// Bytes a second.
    pub rate: f64,
    /// How long a byte waits at most in the queue, which drops what does not fit.
    pub queue: Duration,
    pub delay: Duration,
    /// The share of packets that is lost after the queue.
    pub loss: f64,
}

pub struct Link {
    path: Path,
    is_free_at: Instant,
    random: SmallRng,
    /// The sum of how long packets waited in the queue, since the last `forget`.
    waited: Duration,
    packets: u32,
}

impl Link {
    pub fn new(path: Path, start: Instant, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        Self { path, is_free_at: start, random, waited: Duration::ZERO, packets: 0 }
    }

    /// Return when a packet of so many bytes arrives, unless it is dropped.
    pub fn arrival(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let wait = self.is_free_at.saturating_duration_since(now);
        if wait > self.path.queue {
            return None;
        }
        self.waited += wait;
        self.packets += 1;
        self.is_free_at = now + wait + Duration::from_secs_f64(bytes as f64 / self.path.rate);
        (!self.random.random_bool(self.path.loss)).then(|| self.is_free_at + self.path.delay)
    }

    /// Begin to measure anew.
    pub fn forget(&mut self) {
        (self.waited, self.packets) = (Duration::ZERO, 0);
    }

    /// The mean time that a packet waited in the queue, in milliseconds.
    pub fn mean_wait_ms(&self) -> f64 {
        self.waited.as_secs_f64() * 1e3 / f64::from(self.packets.max(1))
    }
}
