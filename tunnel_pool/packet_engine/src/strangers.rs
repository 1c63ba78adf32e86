//! Which strangers reach a circuit that ends here: none until it has asked to be found, as trackers and DHT nodes are
//! asked, and then so many datagrams a second (overlay/serving/strangers.py is the twin).

use std::collections::HashSet;
use std::net::IpAddr;

use crate::counters::DropReason;
use crate::limits::OwnBucket;
use crate::rules::ExitRules;

/// A destination is remembered for so long or twice that, as NATs do (RFC 4787, REQ-5): peers keep a connection alive
/// every two minutes. Of a circuit with more than this, the older ones are forgotten sooner.
const REMEMBERED_NS: u64 = 150_000_000_000;
const MAX_REMEMBERED: usize = 4096;
const BURST_NS: u64 = 1_000_000_000;
/// Of introduction points that were asked over the circuit, as they may answer from another address.
const ANSWERS_PER_S: u64 = 10;
/// The one that most goes to is not looked up for each datagram.
const SAME_NS: u64 = 1_000_000_000;

/// BEP 15: the action of a request is its third word, 1 is an announce of at least 98 bytes.
const ANNOUNCE_ACTION: [u8; 4] = [0, 0, 0, 1];
const ANNOUNCE_BYTES: usize = 98;
/// BEP 5: what a DHT node is asked, as the keys of a dictionary are in order.
const ANNOUNCE_PEER: &[u8] = b"1:q13:announce_peer";

/// Whether a datagram tells a tracker or a DHT node where its sender is found.
pub fn is_announce(payload: &[u8]) -> bool {
    match payload {
        [b'd', .., b'e'] => payload.windows(ANNOUNCE_PEER.len()).any(|window| window == ANNOUNCE_PEER),
        _ => payload.len() >= ANNOUNCE_BYTES && payload.get(8..12) == Some(&ANNOUNCE_ACTION),
    }
}

/// Where one circuit has sent to of late, by IP address: an answer may come from another port.
#[derive(Debug, Default)]
pub struct Strangers {
    announced: bool,
    recent: HashSet<IpAddr>,
    before: HashSet<IpAddr>,
    turned_ns: u64,
    last: Option<(IpAddr, u64)>,
    rate: OwnBucket,
    asks_introduction_points: bool,
    answers: OwnBucket,
}

impl Strangers {
    /// Note a datagram that left.
    pub fn sent(&mut self, to: IpAddr, payload: &[u8], now_ns: u64) {
        self.announced = self.announced || is_announce(payload);
        if self.is_last(to, now_ns) {
            return;
        }
        self.last = Some((to, now_ns));
        if now_ns.saturating_sub(self.turned_ns) >= REMEMBERED_NS || self.recent.len() >= MAX_REMEMBERED {
            self.before = std::mem::take(&mut self.recent);
            self.turned_ns = now_ns;
        }
        self.recent.insert(to);
    }

    fn is_last(&self, ip: IpAddr, now_ns: u64) -> bool {
        self.last.is_some_and(|(last, since_ns)| last == ip && now_ns.saturating_sub(since_ns) < SAME_NS)
    }

    /// Let strangers in from now on: the circuit has asked to be found in another way.
    pub fn announced(&mut self) {
        self.announced = true;
    }

    /// Whether the circuit has asked to be found.
    pub fn is_announced(&self) -> bool {
        self.announced
    }

    /// Note that an introduction point is asked over the circuit.
    pub fn asks_introduction_points(&mut self) {
        self.asks_introduction_points = true;
    }

    /// Whether a message may come in that could be an introduction point's answer, wherever it comes from.
    pub fn let_answer_in(&mut self, now_ns: u64) -> bool {
        let permits = self.asks_introduction_points && self.answers.permits(now_ns);
        if permits {
            self.answers.take(1, ANSWERS_PER_S, BURST_NS, now_ns);
        }
        permits
    }

    /// Whether a datagram from there is a stranger's, and may come in.
    pub fn let_in(&mut self, rules: &ExitRules, from: IpAddr, now_ns: u64) -> Result<bool, DropReason> {
        let is_known = self.is_last(from, now_ns) || self.recent.contains(&from) || self.before.contains(&from);
        if is_known {
            return Ok(false);
        }
        let per_s = rules.inbound_per_s.filter(|_| self.announced).ok_or(DropReason::ExitStranger)?;
        if per_s > 0 {
            if !self.rate.permits(now_ns) {
                return Err(DropReason::ExitStrangersTooFast);
            }
            self.rate.take(1, u64::from(per_s), BURST_NS, now_ns);
        }
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const RULES: fn() -> ExitRules = || ExitRules { inbound_per_s: Some(10), ..ExitRules::default() };

    fn host(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([9, 9, high, low])
    }

    fn udp_announce() -> Vec<u8> {
        let mut packet = vec![7; ANNOUNCE_BYTES];
        packet[8..12].copy_from_slice(&ANNOUNCE_ACTION);
        packet
    }

    #[test]
    fn who_was_sent_to_is_no_stranger() {
        let mut strangers = Strangers::default();
        strangers.sent(host(1), b"x", 0);
        strangers.sent(host(2), b"x", 0);
        assert_eq!(strangers.let_in(&RULES(), host(1), 0), Ok(false));
        assert_eq!(strangers.let_in(&RULES(), host(2), 0), Ok(false));
        assert_eq!(strangers.let_in(&RULES(), host(3), 0), Err(DropReason::ExitStranger));
    }

    #[test]
    fn strangers_come_in_once_the_circuit_is_announced_and_where_the_operator_lets_them() {
        let dht =
            b"d1:ad2:id20:aaaaaaaaaaaaaaaaaaaa9:info_hash20:bbbbbbbbbbbbbbbbbbbbe1:q13:announce_peer1:t1:x1:y1:qe";
        for announce in [udp_announce(), dht.to_vec()] {
            let mut strangers = Strangers::default();
            strangers.sent(host(1), &announce, 0);
            assert_eq!(strangers.let_in(&RULES(), host(3), 0), Ok(true));
            let rules = ExitRules { inbound_per_s: None, ..RULES() };
            assert_eq!(strangers.let_in(&rules, host(3), SECOND_NS), Err(DropReason::ExitStranger));
        }
        let mut strangers = Strangers::default();
        strangers.announced();
        assert_eq!(strangers.let_in(&RULES(), host(3), 0), Ok(true));
    }

    #[test]
    fn strangers_come_at_a_rate_and_others_as_they_like() {
        let mut strangers = Strangers::default();
        strangers.sent(host(1), &udp_announce(), 0);
        let now_ns = 100 * SECOND_NS;
        let in_a_second = (0..1000).filter(|n| strangers.let_in(&RULES(), host(10 + n), now_ns).is_ok()).count();
        assert!((10..=11).contains(&in_a_second), "{in_a_second}");
        assert_eq!(strangers.let_in(&RULES(), host(9), now_ns), Err(DropReason::ExitStrangersTooFast));
        assert!((0..1000).all(|_| strangers.let_in(&RULES(), host(1), now_ns) == Ok(false)));
        let no_limit = ExitRules { inbound_per_s: Some(0), ..RULES() };
        assert!((0..1000).all(|n| strangers.let_in(&no_limit, host(10 + n), now_ns) == Ok(true)));
    }

    #[test]
    fn destinations_are_forgotten_in_time() {
        let mut strangers = Strangers::default();
        strangers.sent(host(1), b"x", REMEMBERED_NS);
        for later in 1..=2 {
            strangers.sent(host(2), b"x", REMEMBERED_NS + later * REMEMBERED_NS);
            assert_eq!(strangers.let_in(&RULES(), host(1), 0).is_ok(), later < 2, "{later}");
        }
    }

    #[test]
    fn however_many_destinations_there_are_few_are_remembered_and_the_newest_are_among_them() {
        let mut strangers = Strangers::default();
        for number in 0..u16::MAX {
            strangers.sent(host(number), b"x", SECOND_NS);
            let newest = number.saturating_sub(1000);
            assert_eq!(strangers.let_in(&RULES(), host(newest), SECOND_NS), Ok(false));
        }
        assert!(strangers.recent.len() + strangers.before.len() <= 2 * MAX_REMEMBERED);
    }

    #[test]
    fn what_only_looks_like_an_announce_is_none() {
        let mut connect = udp_announce();
        connect[11] = 0;
        let short = &udp_announce()[..ANNOUNCE_BYTES - 1];
        let query = b"d1:ad2:id20:aaaaaaaaaaaaaaaaaaaae1:q4:ping1:t1:x1:y1:qe";
        for payload in [&connect[..], short, query, b"", b"d", b"de"] {
            assert!(!is_announce(payload), "{payload:?}");
        }
    }

    proptest! {
        #[test]
        fn no_payload_panics(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = is_announce(&payload);
        }
    }
}
