//! How many connections a circuit that ends here may ask for: nobody scans ports or floods a host through us. Pure.
//!
//! A new circuit costs nothing. So the same is counted for all circuits of a previous hop, and for each destination.
//! A connection has failed, too, whose content was refused, or which ended before its content was judged. Connections
//! that were not judged yet are bounded as well: whoever holds them open learns of as few ports.

use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;

use crate::address::subnet_of;
use crate::counters::DropReason;
use crate::limits::OwnBucket;

/// Connections a second, with a burst of ten seconds' worth.
const PER_S: u64 = 20;
const BURST_NS: u64 = 10_000_000_000;
/// Connections to one address that failed, and all of a circuit that failed, until there was a quiet minute or two.
const MAX_FAILED_OF_ADDRESS: u32 = 4;
const MAX_FAILED: u32 = 256;
/// Connections to one address that were not judged yet, of a circuit: libtorrent asks one tracker about 50 torrents at a
/// time (its max_concurrent_http_announces).
const MAX_UNJUDGED_OF_ADDRESS: u32 = 64;
const FORGET_NS: u64 = 60_000_000_000;
/// What the circuits of one previous hop have together, for one that a circuit has.
const CIRCUITS_OF_A_NEIGHBOUR: u32 = 8;
/// Once so many connections to one address have failed, of all circuits together, a previous hop that had a part in it
/// has to wait. Others need not: two that fail on purpose would shut everybody out of an address.
const MAX_FAILED_OF_ADDRESS_IN_ALL: u32 = 64;
const MAX_NEIGHBOURS: usize = 4096;
const MAX_ADDRESSES: usize = 16384;

/// The connections of one circuit.
#[derive(Debug, Default)]
pub struct Dials {
    new: OwnBucket,
    failed: HashMap<IpAddr, u32>,
    all_failed: u32,
    unjudged: HashMap<IpAddr, u32>,
    all_unjudged: u32,
    forgot_ns: u64,
}

impl Dials {
    /// Whether one more connection may be made.
    pub fn may_dial(&mut self, to: IpAddr, now_ns: u64) -> Result<(), DropReason> {
        self.may_dial_times(to, 1, now_ns)
    }

    /// The same for so many circuits together.
    fn may_dial_times(&mut self, to: IpAddr, circuits: u32, now_ns: u64) -> Result<(), DropReason> {
        self.forget(now_ns);
        let of_address = |counts: &HashMap<IpAddr, u32>| counts.get(&to).copied().unwrap_or(0);
        if self.all_failed.saturating_add(self.all_unjudged) >= MAX_FAILED * circuits
            || of_address(&self.failed) >= MAX_FAILED_OF_ADDRESS * circuits
            || of_address(&self.unjudged) >= MAX_UNJUDGED_OF_ADDRESS * circuits
        {
            return Err(DropReason::StreamFailedTooOften);
        }
        self.may_ask_times(circuits, now_ns)
    }

    /// Whether a name may be looked up for one more connection; it is counted as one.
    pub fn may_ask(&mut self, now_ns: u64) -> Result<(), DropReason> {
        self.may_ask_times(1, now_ns)
    }

    fn may_ask_times(&mut self, circuits: u32, now_ns: u64) -> Result<(), DropReason> {
        if !self.new.permits(now_ns) {
            return Err(DropReason::StreamTooFast);
        }
        self.new.take(1, PER_S * u64::from(circuits), BURST_NS, now_ns);
        Ok(())
    }

    /// A connection was begun: `judged` tells what became of it.
    pub fn begun(&mut self, to: IpAddr) {
        *self.unjudged.entry(to).or_default() += 1;
        self.all_unjudged = self.all_unjudged.saturating_add(1);
    }

    /// A connection that was begun is there and its content has passed, or it has failed.
    pub fn judged(&mut self, to: IpAddr, has_passed: bool) {
        self.all_unjudged = self.all_unjudged.saturating_sub(1);
        if let Entry::Occupied(mut count) = self.unjudged.entry(to) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if !has_passed {
            *self.failed.entry(to).or_default() += 1;
            self.all_failed = self.all_failed.saturating_add(1);
        }
    }

    /// Halve what is remembered, once a minute.
    fn forget(&mut self, now_ns: u64) {
        if let Some(left) = halved(&mut self.forgot_ns, now_ns) {
            self.all_failed = left(self.all_failed);
            halve_all(&mut self.failed, left);
        }
    }

    fn is_idle(&mut self, now_ns: u64) -> bool {
        self.forget(now_ns);
        self.all_failed == 0 && self.all_unjudged == 0 && self.new.permits(now_ns)
    }
}

/// What is left of a count after the minutes since `forgot_ns`, if there were any; the time of that is now, then.
fn halved(forgot_ns: &mut u64, now_ns: u64) -> Option<impl Fn(u32) -> u32 + Copy> {
    let minutes = now_ns.saturating_sub(*forgot_ns) / FORGET_NS;
    (minutes > 0).then(|| {
        *forgot_ns = now_ns;
        move |count: u32| count.checked_shr(u32::try_from(minutes).unwrap_or(u32::MAX)).unwrap_or(0)
    })
}

fn halve_all(counts: &mut HashMap<IpAddr, u32>, left: impl Fn(u32) -> u32) {
    counts.retain(|_, count| {
        *count = left(*count);
        *count > 0
    });
}

/// The connections of all circuits that end here, by previous hop and by destination.
#[derive(Debug, Default)]
pub struct AllDials {
    neighbours: HashMap<IpAddr, Dials>,
    failed: HashMap<IpAddr, u32>,
    forgot_ns: u64,
}

impl AllDials {
    /// Whether one more connection may be made for this previous hop.
    pub fn may_dial(&mut self, neighbour: IpAddr, to: IpAddr, now_ns: u64) -> Result<(), DropReason> {
        if let Some(left) = halved(&mut self.forgot_ns, now_ns) {
            halve_all(&mut self.failed, left);
            self.neighbours.retain(|_, dials| !dials.is_idle(now_ns));
        }
        let neighbour = subnet_of(neighbour);
        if self.neighbours.len() >= MAX_NEIGHBOURS && !self.neighbours.contains_key(&neighbour) {
            return Err(DropReason::StreamTooFast);
        }
        let is_scanned = self.failed.get(&to).is_some_and(|failed| *failed >= MAX_FAILED_OF_ADDRESS_IN_ALL);
        let dials = self.neighbours.entry(neighbour).or_default();
        if is_scanned && dials.failed.contains_key(&to) {
            return Err(DropReason::StreamFailedTooOften);
        }
        dials.may_dial_times(to, CIRCUITS_OF_A_NEIGHBOUR, now_ns)
    }

    /// A connection was begun for this previous hop.
    pub fn begun(&mut self, neighbour: IpAddr, to: IpAddr) {
        self.neighbours.entry(subnet_of(neighbour)).or_default().begun(to);
    }

    /// A connection for this previous hop is there and its content has passed, or it has failed.
    pub fn judged(&mut self, neighbour: IpAddr, to: IpAddr, has_passed: bool) {
        if let Some(dials) = self.neighbours.get_mut(&subnet_of(neighbour)) {
            dials.judged(to, has_passed);
        }
        if has_passed {
            return;
        }
        if self.failed.len() < MAX_ADDRESSES || self.failed.contains_key(&to) {
            *self.failed.entry(to).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000_000_000;

    fn to(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([8, 8, high, low])
    }

    #[test]
    fn connections_come_at_a_rate() {
        let mut dials = Dials::default();
        let at_once = (0..1000).filter(|number| dials.may_dial(to(*number), START_NS).is_ok()).count();
        assert!((200..=201).contains(&at_once), "{at_once}");
        assert_eq!(dials.may_dial(to(0), START_NS), Err(DropReason::StreamTooFast));
        let later = (0..1000).filter(|number| dials.may_dial(to(*number), START_NS + 1_000_000_000).is_ok()).count();
        assert!((19..=21).contains(&later), "{later}");
    }

    #[test]
    fn an_address_that_refuses_is_left_alone_for_a_while() {
        let mut dials = Dials::default();
        for _ in 0..MAX_FAILED_OF_ADDRESS {
            assert!(dials.may_dial(to(1), START_NS).is_ok());
            dials.begun(to(1));
            dials.judged(to(1), false);
        }
        assert_eq!(dials.may_dial(to(1), START_NS), Err(DropReason::StreamFailedTooOften));
        assert!(dials.may_dial(to(2), START_NS).is_ok());
        assert!(dials.may_dial(to(1), START_NS + FORGET_NS).is_ok());
    }

    #[test]
    fn new_circuits_of_one_neighbour_scan_no_more_than_a_few() {
        let (mut all, neighbour) = (AllDials::default(), IpAddr::from([9, 9, 9, 9]));
        let mut tried = 0;
        for _ in 0..1000 {
            if all.may_dial(neighbour, to(1), START_NS).is_ok() {
                all.begun(neighbour, to(1));
                all.judged(neighbour, to(1), false);
                tried += 1;
            }
        }
        assert_eq!(tried, MAX_FAILED_OF_ADDRESS * CIRCUITS_OF_A_NEIGHBOUR);
        assert!(all.may_dial(neighbour, to(2), START_NS).is_ok());
        assert!(all.may_dial(neighbour, to(1), START_NS + FORGET_NS).is_ok());
    }

    #[test]
    fn many_neighbours_scan_little_of_one_address_and_shut_nobody_else_out() {
        let mut all = AllDials::default();
        let scanned = IpAddr::from([7, 7, 7, 7]);
        for round in 0..10 {
            for number in 0..1000 {
                if all.may_dial(to(number), scanned, START_NS).is_ok() {
                    all.begun(to(number), scanned);
                    all.judged(to(number), scanned, false);
                    assert_eq!(round, 0);
                }
            }
        }
        assert!(all.may_dial(to(2000), scanned, START_NS).is_ok());
        all.begun(to(2000), scanned);
        all.judged(to(2000), scanned, true);
        assert!(all.may_dial(to(2000), scanned, START_NS).is_ok());
        assert!(all.neighbours.len() <= MAX_NEIGHBOURS);
    }

    #[test]
    fn connections_that_are_held_open_scan_no_more_than_those_that_fail() {
        let (mut dials, mut all, neighbour) = (Dials::default(), AllDials::default(), IpAddr::from([9, 9, 9, 9]));
        for number in 0..600 {
            if dials.may_dial(to(1), START_NS).is_ok() {
                dials.begun(to(1));
                assert!(number < MAX_UNJUDGED_OF_ADDRESS);
            }
            if all.may_dial(neighbour, to(1), START_NS).is_ok() {
                all.begun(neighbour, to(1));
                assert!(number < MAX_UNJUDGED_OF_ADDRESS * CIRCUITS_OF_A_NEIGHBOUR);
            }
        }
        // Once they have passed, they count no more, and once they have failed, for a while.
        dials.judged(to(1), true);
        assert!(dials.may_dial(to(1), START_NS).is_ok());
        for _ in 0..MAX_FAILED_OF_ADDRESS {
            dials.judged(to(1), false);
        }
        assert!(dials.may_dial(to(1), START_NS).is_err());
        assert!(dials.may_dial(to(2), START_NS).is_ok());
    }

    #[test]
    fn addresses_of_one_network_are_one_neighbour() {
        let mut all = AllDials::default();
        let mut tried = 0;
        for number in 0..1000_u16 {
            let neighbour = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, number]);
            if all.may_dial(neighbour, to(1), START_NS).is_ok() {
                all.begun(neighbour, to(1));
                all.judged(neighbour, to(1), false);
                tried += 1;
            }
        }
        assert_eq!(tried, MAX_FAILED_OF_ADDRESS * CIRCUITS_OF_A_NEIGHBOUR);
    }

    #[test]
    fn who_fails_everywhere_is_stopped_and_what_is_remembered_is_bounded() {
        let mut dials = Dials::default();
        let mut now_ns = START_NS;
        let mut tried = 0;
        for number in 0..10_000 {
            now_ns += 50_000_000;
            if dials.may_dial(to(number), now_ns).is_ok() {
                dials.begun(to(number));
                dials.judged(to(number), false);
                tried += 1;
            }
            assert!(dials.failed.len() <= MAX_FAILED as usize);
        }
        assert!(tried < 256 + 128 * 9, "{tried}");
    }
}
