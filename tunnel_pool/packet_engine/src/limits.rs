//! How fast bytes may go, over all children of a node: token buckets in memory that they share.
//!
//! The layout, in 64-bit words (overlay/serving/limits.py writes it, the children take from it):
//!
//! ```text
//! 0       version
//! 1       whether anything is limited
//! 2       how long a datagram may wait, ns
//! 3       how far an idle bucket fills, ns of its rate
//! 4       bytes that may wait of one circuit's direction
//! 5, 6    bytes a second of one circuit's direction, up and down
//! 8..24   of each bucket: bytes a second, and until when (ns, CLOCK_MONOTONIC) it is used up
//! 32..288 of each child, by slot: circuits that wait, by class (3 x 16 bits), and when it said so (ms, 16 bits)
//! 288..   of each child, 8 words: bytes that it let go, by class, up and down; its successor goes on counting
//! ```
//!
//! Buckets are those of relayed, exited and own traffic and of all of it, each up and down. A rate
//! of u64::MAX is none. A bucket is a GCRA (ITU-T I.371): one word, so that children take from it
//! without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::SharedWords;

/// Length of the shared memory, in 64-bit words.
pub const WORDS: usize = AT_COUNTED + SLOTS * COUNTED_WORDS;
const VERSION: u64 = 1;
const UNLIMITED: u64 = u64::MAX;

const AT_VERSION: usize = 0;
const AT_ANY: usize = 1;
const AT_MAX_DELAY: usize = 2;
const AT_BURST: usize = 3;
const AT_QUEUE_BYTES: usize = 4;
const AT_CIRCUIT: usize = 5;
const AT_BUCKETS: usize = 8;
const AT_WAITING: usize = 32;
const AT_COUNTED: usize = AT_WAITING + SLOTS;
const COUNTED_WORDS: usize = 8;
const SLOTS: usize = 256;

const CLASSES: usize = 3;
const TOTAL: usize = CLASSES;
const BUCKETS: usize = 2 * (CLASSES + 1);
/// How long a child's last report gives it a share of the node's limits, in milliseconds.
const SHARES_MS: u64 = 100;
const WORD_16: u64 = 0xFFFF;

/// Whose traffic it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Cells that are passed on between two neighbours.
    Relayed,
    /// Cells and datagrams of circuits of other nodes that end here.
    Exited,
    /// Cells and datagrams of circuits of ours.
    Own,
}

impl Class {
    /// All classes, in the order of their indices.
    pub const ALL: [Class; CLASSES] = [Class::Relayed, Class::Exited, Class::Own];

    /// Returns the class's index in `ALL`, which also orders the buckets in shared memory.
    pub fn index(self) -> usize {
        match self {
            Class::Relayed => 0,
            Class::Exited => 1,
            Class::Own => 2,
        }
    }
}

/// What a datagram costs: the bytes that leave, and those that came in for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Bytes that leave.
    pub up: u64,
    /// Bytes that came in.
    pub down: u64,
}

fn cost_ns(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}

/// A bucket of this process alone, with a rate that is told each time.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnBucket {
    used_until_ns: u64,
}

impl OwnBucket {
    /// Returns whether something may be taken now: everything that was taken before is paid off.
    pub fn permits(self, now_ns: u64) -> bool {
        self.used_until_ns <= now_ns
    }

    /// Takes bytes, or other units, at a rate in the same units a second. A bucket that was idle allows a burst of
    /// `burst_ns` worth of the rate; a bucket that does not permit anything now goes further into debt.
    pub fn take(&mut self, bytes: u64, rate: u64, burst_ns: u64, now_ns: u64) {
        let from = self.used_until_ns.max(now_ns.saturating_sub(burst_ns));
        self.used_until_ns = from.saturating_add(cost_ns(bytes, rate));
    }
}

/// One child's view of the node's limits, and its share of them.
pub struct Limits {
    words: SharedWords,
    slot: usize,
    /// How much of each bucket is ours while others want it, too.
    shares: [f64; BUCKETS],
    own: [OwnBucket; BUCKETS],
}

impl Limits {
    /// None when the memory is of another version.
    pub fn new(words: SharedWords, slot: u8) -> Option<Self> {
        let limits = Self { words, slot: usize::from(slot), shares: [1.0; BUCKETS], own: Default::default() };
        (limits.word(AT_VERSION) == VERSION).then_some(limits)
    }

    fn atomic(&self, at: usize) -> Option<&AtomicU64> {
        self.words.get(at)
    }

    fn word(&self, at: usize) -> u64 {
        self.atomic(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns whether anything is limited.
    pub fn are_any(&self) -> bool {
        self.word(AT_ANY) != 0
    }

    /// Returns how long a datagram may wait, in nanoseconds.
    pub fn max_delay_ns(&self) -> u64 {
        self.word(AT_MAX_DELAY)
    }

    /// Returns how far an idle bucket fills, in nanoseconds' worth of its rate.
    pub fn burst_ns(&self) -> u64 {
        self.word(AT_BURST)
    }

    /// Returns how many bytes may wait in the queue of one circuit's direction.
    pub fn queue_bytes(&self) -> u64 {
        self.word(AT_QUEUE_BYTES)
    }

    /// Bytes a second of one circuit's direction, up and down; None is no limit.
    pub fn circuit_rates(&self) -> [Option<u64>; 2] {
        [AT_CIRCUIT, AT_CIRCUIT + 1].map(|at| Some(self.word(at)).filter(|rate| *rate != UNLIMITED))
    }

    fn rate(&self, bucket: usize) -> Option<u64> {
        Some(self.word(AT_BUCKETS + 2 * bucket)).filter(|rate| *rate != UNLIMITED)
    }

    fn used_until(&self, bucket: usize) -> Option<&AtomicU64> {
        self.atomic(AT_BUCKETS + 2 * bucket + 1)
    }

    /// The limited buckets that such a datagram is taken from, with their rates and its bytes.
    fn concerned(&self, class: Class, bytes: Bytes) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let sides = [(0, bytes.up), (1, bytes.down)];
        let buckets = [class.index(), TOTAL].into_iter().flat_map(move |kind| {
            sides.into_iter().filter(|(_, bytes)| *bytes > 0).map(move |(side, bytes)| (2 * kind + side, bytes))
        });
        buckets.filter_map(|(bucket, bytes)| Some((bucket, self.rate(bucket)?, bytes)))
    }

    /// Whether a datagram may go now; with `in_turn`, one that waited, which is to leave others their shares.
    pub fn permit(&self, class: Class, bytes: Bytes, now_ns: u64, in_turn: bool) -> bool {
        self.concerned(class, bytes).all(|(bucket, rate, _)| {
            let is_free = self.used_until(bucket).is_some_and(|until| until.load(Ordering::Relaxed) <= now_ns);
            let is_ours = !in_turn || self.own.get(bucket).is_none_or(|own| own.permits(now_ns));
            rate > 0 && is_free && is_ours
        })
    }

    /// Take what a datagram costs.
    pub fn take(&mut self, class: Class, bytes: Bytes, now_ns: u64, in_turn: bool) {
        let burst_ns = self.burst_ns();
        let concerned: [_; 4] = {
            let mut all = self.concerned(class, bytes);
            std::array::from_fn(|_| all.next())
        };
        for (bucket, rate, bytes) in concerned.into_iter().flatten() {
            if let Some(until) = self.used_until(bucket) {
                let earliest = now_ns.saturating_sub(burst_ns);
                let take = |before: u64| Some(before.max(earliest).saturating_add(cost_ns(bytes, rate)));
                let _ = until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            }
            if let (true, Some(own), Some(share)) = (in_turn, self.own.get_mut(bucket), self.shares.get(bucket)) {
                if *share < 1.0 {
                    own.take(bytes, (rate as f64 * share) as u64, burst_ns, now_ns);
                }
            }
        }
    }

    /// Count what was let go.
    pub fn count(&self, class: Class, bytes: Bytes) {
        let at = AT_COUNTED + self.slot * COUNTED_WORDS + 2 * class.index();
        for (at, bytes) in [(at, bytes.up), (at + 1, bytes.down)] {
            if let Some(word) = self.atomic(at) {
                // There is one writer.
                word.store(word.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
            }
        }
    }

    /// Publish how many circuits of each class wait here, and compute our share of each limit.
    pub fn share_out(&mut self, waiting: [usize; CLASSES], now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) & WORD_16;
        let packed = waiting.iter().rev().fold(now_ms, |word, count| word << 16 | (*count as u64).min(WORD_16));
        if let Some(word) = self.atomic(AT_WAITING + self.slot) {
            word.store(packed, Ordering::Relaxed);
        }
        let mut all = [0u64; CLASSES];
        for slot in 0..SLOTS {
            let word = self.word(AT_WAITING + slot);
            let age_ms = now_ms.wrapping_sub(word >> 48) & WORD_16;
            if word != 0 && age_ms < SHARES_MS {
                for (class, sum) in all.iter_mut().enumerate() {
                    *sum += word >> (16 * class) & WORD_16;
                }
            }
        }
        let share = |ours: u64, all: u64| if ours == 0 || ours >= all { 1.0 } else { ours as f64 / all as f64 };
        let ours = waiting.map(|count| (count as u64).min(WORD_16));
        let mut kinds: Vec<f64> = ours.iter().zip(&all).map(|(ours, all)| share(*ours, *all)).collect();
        kinds.push(share(ours.iter().sum(), all.iter().sum()));
        for (bucket, place) in self.shares.iter_mut().enumerate() {
            *place = kinds.get(bucket / 2).copied().unwrap_or(1.0);
        }
    }
}

/// The unit tests, and shared memory for the tests of the shaper.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod tests {
    use super::*;

    /// Nanoseconds in a millisecond.
    pub const MS: u64 = 1_000_000;

    /// Memory as overlay/serving/limits.py would write it, with the rates that are named.
    pub fn memory(rates: &[(usize, u64)], circuit: u64) -> SharedWords {
        let words = SharedWords::anonymous(WORDS).unwrap();
        let set = |at: usize, value: u64| words.get(at).unwrap().store(value, Ordering::Relaxed);
        set(AT_VERSION, VERSION);
        set(AT_ANY, 1);
        set(AT_MAX_DELAY, 200 * MS);
        set(AT_BURST, 20 * MS);
        set(AT_QUEUE_BYTES, 1 << 20);
        set(AT_CIRCUIT, circuit);
        set(AT_CIRCUIT + 1, UNLIMITED);
        for bucket in 0..BUCKETS {
            set(AT_BUCKETS + 2 * bucket, UNLIMITED);
        }
        for (bucket, rate) in rates {
            set(AT_BUCKETS + 2 * bucket, *rate);
        }
        words
    }

    #[test]
    fn a_rate_holds_over_time_and_an_idle_bucket_fills_so_far() {
        let mut limits = Limits::new(memory(&[(0, 1_000_000)], UNLIMITED), 0).unwrap();
        let bytes = Bytes { up: 1000, down: 0 };
        let mut sent = 0;
        for ms in 1_000..2_000 {
            while limits.permit(Class::Relayed, bytes, ms * MS, false) {
                limits.take(Class::Relayed, bytes, ms * MS, false);
                sent += 1000;
            }
        }
        assert!((1_000_000..=1_030_000).contains(&sent), "{sent}");
        assert!(limits.permit(Class::Exited, bytes, 2_000 * MS, false));
        assert!(limits.permit(Class::Relayed, Bytes { up: 0, down: 9 }, 2_000 * MS, false));
    }

    #[test]
    fn nothing_goes_at_a_rate_of_nothing() {
        let limits = Limits::new(memory(&[(6, 0)], UNLIMITED), 0).unwrap();
        assert!(!limits.permit(Class::Own, Bytes { up: 1, down: 0 }, 1_000 * MS, false));
        assert!(limits.permit(Class::Own, Bytes { up: 0, down: 1 }, 1_000 * MS, false));
    }

    #[test]
    fn memory_of_another_version_is_refused() {
        assert!(Limits::new(SharedWords::anonymous(WORDS).unwrap(), 0).is_none());
    }

    #[test]
    fn shares_are_by_circuits_that_wait() {
        let words = memory(&[(0, 1_000_000)], UNLIMITED);
        let mut one = Limits::new(words.clone(), 0).unwrap();
        let mut other = Limits::new(words, 7).unwrap();
        other.share_out([3, 0, 0], 1_000 * MS);
        one.share_out([1, 0, 2], 1_000 * MS);
        assert_eq!(one.shares, [0.25, 0.25, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5]);
        one.share_out([1, 0, 2], 1_200 * MS);
        assert_eq!(one.shares, [1.0; BUCKETS]);
    }
}
