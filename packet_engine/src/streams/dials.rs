//! How many connections a circuit that ends here may ask for: nobody scans ports or floods a host through us. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::counters::DropReason;
use crate::limits::OwnBucket;

/// Connections a second, with a burst of ten seconds' worth.
const PER_S: u64 = 20;
const BURST_NS: u64 = 10_000_000_000;
/// Connections to one address that failed, and all of a circuit that failed, until there was a quiet minute or two.
const MAX_FAILED_OF_ADDRESS: u32 = 4;
const MAX_FAILED: u32 = 256;
const FORGET_NS: u64 = 60_000_000_000;

/// The connections of one circuit.
#[derive(Debug, Default)]
pub struct Dials {
    new: OwnBucket,
    failed: HashMap<IpAddr, u32>,
    all_failed: u32,
    forgot_ns: u64,
}

impl Dials {
    /// Whether one more connection may be made; it is counted then.
    pub fn may_dial(&mut self, to: IpAddr, now_ns: u64) -> Result<(), DropReason> {
        self.forget(now_ns);
        if self.all_failed >= MAX_FAILED || self.failed.get(&to).is_some_and(|failed| *failed >= MAX_FAILED_OF_ADDRESS)
        {
            return Err(DropReason::StreamFailedTooOften);
        }
        self.may_ask(now_ns)
    }

    /// Whether a name may be looked up for one more connection; it is counted as one.
    pub fn may_ask(&mut self, now_ns: u64) -> Result<(), DropReason> {
        if !self.new.permits(now_ns) {
            return Err(DropReason::StreamTooFast);
        }
        self.new.take(1, PER_S, BURST_NS, now_ns);
        Ok(())
    }

    /// A connection was refused, or not answered.
    pub fn failed(&mut self, to: IpAddr) {
        *self.failed.entry(to).or_default() += 1;
        self.all_failed = self.all_failed.saturating_add(1);
    }

    /// Halve what is remembered, once a minute.
    fn forget(&mut self, now_ns: u64) {
        let minutes = now_ns.saturating_sub(self.forgot_ns) / FORGET_NS;
        if minutes == 0 {
            return;
        }
        self.forgot_ns = now_ns;
        let left = |count: u32| count.checked_shr(u32::try_from(minutes).unwrap_or(u32::MAX)).unwrap_or(0);
        self.all_failed = left(self.all_failed);
        self.failed.retain(|_, failed| {
            *failed = left(*failed);
            *failed > 0
        });
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
            dials.failed(to(1));
        }
        assert_eq!(dials.may_dial(to(1), START_NS), Err(DropReason::StreamFailedTooOften));
        assert!(dials.may_dial(to(2), START_NS).is_ok());
        assert!(dials.may_dial(to(1), START_NS + FORGET_NS).is_ok());
    }

    #[test]
    fn who_fails_everywhere_is_stopped_and_what_is_remembered_is_bounded() {
        let mut dials = Dials::default();
        let mut now_ns = START_NS;
        let mut tried = 0;
        for number in 0..10_000 {
            now_ns += 50_000_000;
            if dials.may_dial(to(number), now_ns).is_ok() {
                dials.failed(to(number));
                tried += 1;
            }
            assert!(dials.failed.len() <= MAX_FAILED as usize);
        }
        assert!(tried < 256 + 128 * 9, "{tried}");
    }
}
