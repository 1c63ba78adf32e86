//! How many handshakes are looked at: one costs Python a thousand times what a cell costs here.
//!
//! A bucket in all, and one for each source, of which a bounded number is remembered. Half of the
//! whole is kept for sources that have live circuits with us, so that a flood of made-up sources
//! does not shut the network's own nodes out.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::counters::DropReason;
use crate::limits::OwnBucket;

const MAX_SOURCES: usize = 4096;
/// A burst, in time of the rate.
const BURST_NS: u64 = 2_000_000_000;
/// A neighbour's rate by that of another source.
const NEIGHBOUR_FACTOR: u64 = 2;

/// Limits how many handshakes of one kind are passed on to Python.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// Handshakes a second of all sources together; one half is for neighbours alone. 0: any number.
    pub per_s: u32,
    /// Handshakes a second of one IP address; a neighbour may send twice as many in addition. 0: any number.
    pub per_source_per_s: u32,
    strangers: OwnBucket,
    neighbours: OwnBucket,
    sources: Sources,
    neighbour_sources: Sources,
}

#[derive(Debug, Default)]
struct Sources(HashMap<IpAddr, OwnBucket>);

impl Sources {
    fn bucket(&mut self, from: IpAddr, now_ns: u64) -> &mut OwnBucket {
        if self.0.len() >= MAX_SOURCES && !self.0.contains_key(&from) {
            self.0.retain(|_, bucket| !bucket.permits(now_ns));
            if self.0.len() >= MAX_SOURCES {
                self.0.clear();
            }
        }
        self.0.entry(from).or_default()
    }
}

impl Handshakes {
    /// Count one more handshake if it may be handed on; return why not otherwise.
    pub fn admit(&mut self, from: IpAddr, is_neighbour: bool, now_ns: u64) -> Result<(), DropReason> {
        let half = u64::from(self.per_s).div_ceil(2);
        if is_neighbour && self.per_s > 0 && self.neighbours.permits(now_ns) {
            // Of one neighbour, too, there is a bound: a relay's circuits are many people's, so it is a higher one.
            let rate = u64::from(self.per_source_per_s) * NEIGHBOUR_FACTOR;
            let bucket = self.neighbour_sources.bucket(from, now_ns);
            if rate == 0 || bucket.permits(now_ns) {
                if rate > 0 {
                    bucket.take(1, rate, BURST_NS, now_ns);
                }
                self.neighbours.take(1, half, BURST_NS, now_ns);
                return Ok(());
            }
        }
        if self.per_source_per_s > 0 {
            let bucket = self.sources.bucket(from, now_ns);
            if !bucket.permits(now_ns) {
                return Err(DropReason::HandshakesOfSource);
            }
            bucket.take(1, u64::from(self.per_source_per_s), BURST_NS, now_ns);
        }
        if self.per_s > 0 {
            if !self.strangers.permits(now_ns) {
                return Err(DropReason::HandshakesTooMany);
            }
            self.strangers.take(1, half, BURST_NS, now_ns);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_source_has_its_rate_and_all_have_theirs() {
        let mut handshakes = Handshakes { per_s: 100, per_source_per_s: 10, ..Handshakes::default() };
        let now = 10_000_000_000;
        let of_one = (0..1000).filter(|_| handshakes.admit(source(1), false, now).is_ok()).count();
        assert!((20..=21).contains(&of_one), "{of_one}");
        let of_many = (2..10_000).filter(|number| handshakes.admit(source(*number), false, now).is_ok()).count();
        assert!((79..=81).contains(&of_many), "{of_many}");
        assert!(handshakes.admit(source(99_999), false, now).is_err());
        assert!(handshakes.admit(source(99_999), true, now).is_ok());
        assert!(handshakes.sources.0.len() <= MAX_SOURCES);
    }

    #[test]
    fn one_neighbour_does_not_use_up_what_is_kept_for_all_of_them() {
        let mut handshakes = Handshakes { per_s: 200, per_source_per_s: 20, ..Handshakes::default() };
        let now = 10_000_000_000;
        let of_one = (0..1000).filter(|_| handshakes.admit(source(1), true, now).is_ok()).count();
        assert!((120..=122).contains(&of_one), "{of_one}"); // as a neighbour 80, as anybody 40
        assert!(handshakes.admit(source(2), true, now).is_ok());
    }

    #[test]
    fn without_a_number_any_number() {
        let mut handshakes = Handshakes::default();
        assert!((0..1000).all(|_| handshakes.admit(source(1), false, 0).is_ok()));
    }
}
