//! Whether who begins a connection by uTP to an exit's circuit is refused, so that he comes by TCP, which is faster. Pure.
//!
//! libtorrent tries uTP first, and TCP at once when that is refused, but uTP never again with this peer. So an exit has
//! to find out whether TCP reaches it at all: behind many firewalls it does not. Others than libtorrent are never refused.

use std::collections::HashSet;
use std::net::IpAddr;

/// So many are refused without one of them coming by TCP, before nobody is for a while.
const MAX_UNANSWERED: u32 = 3;
const AGAIN_NS: u64 = 6 * 3_600_000_000_000;
/// Who was refused is not refused again for so long at least: he may speak uTP alone, or insist on encryption, which TCP
/// does not let through here. He gets in by uTP when the circuit is found elsewhere, as it is every few minutes.
const REMEMBERED_NS: u64 = 24 * 3_600_000_000_000;
const MAX_REMEMBERED: usize = 16_384;

/// The addresses that were refused recently, and the number of refusals since somebody last came by TCP.
#[derive(Debug, Default)]
pub struct TcpFirst {
    unanswered: u32,
    refused: HashSet<IpAddr>,
    before: HashSet<IpAddr>,
    turned_ns: u64,
    gave_up_ns: u64,
}

impl TcpFirst {
    /// Whether a connection that begins by uTP is to be refused; it counts as refused then.
    pub fn refuses(&mut self, from: IpAddr, now_ns: u64) -> bool {
        if self.unanswered >= MAX_UNANSWERED {
            if now_ns.saturating_sub(self.gave_up_ns) < AGAIN_NS {
                return false;
            }
            self.unanswered = 0;
        }
        if now_ns.saturating_sub(self.turned_ns) >= REMEMBERED_NS || self.refused.len() >= MAX_REMEMBERED {
            self.before = std::mem::take(&mut self.refused);
            self.turned_ns = now_ns;
        }
        if self.refused.contains(&from) || self.before.contains(&from) {
            return false;
        }
        self.refused.insert(from);
        self.unanswered += 1;
        self.gave_up_ns = now_ns;
        true
    }

    /// Somebody has come by TCP.
    pub fn has_come(&mut self) {
        self.unanswered = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn host(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([9, 9, high, low])
    }

    #[test]
    fn who_was_refused_is_not_refused_again_and_others_are_while_tcp_comes() {
        let mut first = TcpFirst::default();
        for number in 0..1000 {
            assert!(first.refuses(host(number), SECOND_NS));
            assert!(!first.refuses(host(number), SECOND_NS));
            first.has_come();
        }
        assert!(!first.refuses(host(0), REMEMBERED_NS));
        assert!(first.refuses(host(0), 3 * REMEMBERED_NS) && !first.refuses(host(0), 3 * REMEMBERED_NS));
    }

    #[test]
    fn where_nobody_comes_by_tcp_few_are_refused_in_hours() {
        let mut first = TcpFirst::default();
        let hour = 3600 * SECOND_NS;
        let refused = |first: &mut TcpFirst, now_ns| (0..100).filter(|n| first.refuses(host(*n), now_ns)).count();
        assert_eq!(refused(&mut first, hour), 3);
        assert_eq!(refused(&mut first, 2 * hour), 0);
        assert_eq!(refused(&mut first, 8 * hour), 3);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut first = TcpFirst::default();
        for number in 0..u16::MAX {
            first.refuses(host(number), SECOND_NS);
            first.has_come();
        }
        assert!(first.refused.len() + first.before.len() <= 2 * MAX_REMEMBERED);
    }
}
