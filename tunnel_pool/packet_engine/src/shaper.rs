//! Datagrams that a limit holds back: a queue for each circuit and direction, served in turn.
//!
//! Deficit round robin (Shreedhar and Varghese, 1995) among the circuits of a class, and round
//! robin among classes. A datagram is dropped if it has waited too long, or if its queue is full.

use std::collections::{HashMap, VecDeque};

use crate::counters::{Counters, DropReason};
use crate::limits::{Bytes, Class, Limits, OwnBucket};
use crate::outbox::Egress;

/// What a circuit may send in its turn; about one datagram.
const QUANTUM_BYTES: usize = 1500;
/// What a datagram that waits costs beside its bytes.
const OVERHEAD_BYTES: usize = 128;
const MAX_IDLE_FLOWS: usize = 4096;
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// Circuits that are looked at for one that may send; the others have their turn a millisecond later.
const MAX_LOOKS: usize = 256;

/// A datagram that waits.
pub struct QueuedDatagram {
    /// The socket and the destination.
    pub egress: Egress,
    /// The payload.
    pub bytes: Vec<u8>,
}

impl QueuedDatagram {
    /// Copies a datagram's payload out of its buffer, which is soon overwritten.
    pub fn new(egress: Egress, bytes: &[u8]) -> Self {
        Self { egress, bytes: bytes.to_vec() }
    }
}

/// Which queue a datagram is for, and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The class whose limits apply.
    pub class: Class,
    /// The circuit's id and the direction: see `inwards` and `outwards`.
    flow: u64,
    /// The bytes that are taken from the limits.
    pub bytes: Bytes,
}

impl Cost {
    /// What comes to a circuit of ours, goes out of an exit, or is relayed with this id.
    pub fn inwards(class: Class, circuit_id: u32, up: usize, down: usize) -> Self {
        Self { class, flow: u64::from(circuit_id) << 1, bytes: Bytes { up: up as u64, down: down as u64 } }
    }

    /// What a circuit of ours sends, or an exit sends back.
    pub fn outwards(class: Class, circuit_id: u32, up: usize, down: usize) -> Self {
        let inwards = Self::inwards(class, circuit_id, up, down);
        Self { flow: inwards.flow | 1, ..inwards }
    }
}

struct Waiting {
    queued: QueuedDatagram,
    bytes: Bytes,
    since_ns: u64,
}

#[derive(Default)]
struct Flow {
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    deficit: usize,
    /// Of the limit per circuit, up and down.
    own: [OwnBucket; 2],
}

impl Flow {
    fn permits(&self, rates: [Option<u64>; 2], bytes: Bytes, now_ns: u64) -> bool {
        let sides = self.own.iter().zip(rates).zip([bytes.up, bytes.down]);
        sides
            .into_iter()
            .all(|((own, rate), bytes)| bytes == 0 || rate.is_none_or(|rate| rate > 0 && own.permits(now_ns)))
    }

    fn take(&mut self, rates: [Option<u64>; 2], bytes: Bytes, burst_ns: u64, now_ns: u64) {
        for ((own, rate), bytes) in self.own.iter_mut().zip(rates).zip([bytes.up, bytes.down]) {
            if let Some(rate) = rate {
                own.take(bytes, rate, burst_ns, now_ns);
            }
        }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_front()?;
        self.queued_bytes -= waiting.queued.bytes.len() + OVERHEAD_BYTES;
        Some(waiting)
    }
}

type Key = (Class, u64);

/// The queues of one child, and the limits that their datagrams wait for.
pub struct Shaper {
    limits: Limits,
    flows: HashMap<Key, Flow>,
    /// The circuits that wait, by class; whose turn it is comes first.
    turns: [VecDeque<u64>; 3],
    next_class: usize,
    next_look_ns: u64,
}

impl Shaper {
    /// Creates a shaper without any waiting datagram.
    pub fn new(limits: Limits) -> Self {
        Self { limits, flows: HashMap::new(), turns: Default::default(), next_class: 0, next_look_ns: 0 }
    }

    /// Returns whether any datagram waits.
    pub fn is_waiting(&self) -> bool {
        self.turns.iter().any(|turns| !turns.is_empty())
    }

    /// Whether what can't wait in a queue may come now; it may run up a debt, of no more than the longest delay.
    pub fn pay_ahead(&mut self, cost: Cost, now_ns: u64) -> bool {
        self.pay_by(cost, now_ns, now_ns + self.limits.max_delay_ns())
    }

    /// Pay the cost if all its limits are free by `due_ns`; return whether it was paid.
    fn pay_by(&mut self, cost: Cost, now_ns: u64, due_ns: u64) -> bool {
        if !self.limits.are_any() && !self.is_waiting() {
            self.limits.count(cost.class, cost.bytes);
            return true;
        }
        let rates = self.limits.circuit_rates();
        if self.flows.len() > MAX_IDLE_FLOWS && now_ns >= self.next_look_ns {
            self.next_look_ns = now_ns + LOOK_EVERY_NS;
            self.flows.retain(|_, flow| !flow.queue.is_empty() || !flow.own.iter().all(|own| own.permits(now_ns)));
        }
        let flow = self.flows.entry((cost.class, cost.flow)).or_default();
        let may_go = (flow.queue.is_empty() || due_ns > now_ns)
            && flow.permits(rates, cost.bytes, due_ns)
            && self.limits.permit(cost.class, cost.bytes, due_ns, false);
        if may_go {
            flow.take(rates, cost.bytes, self.limits.burst_ns(), now_ns);
            self.limits.take(cost.class, cost.bytes, now_ns, false);
            self.limits.count(cost.class, cost.bytes);
        }
        may_go
    }

    /// Return true if the cost is paid and the datagram is to be sent now. Otherwise queue what
    /// `queued` returns, or drop it if the queue is full.
    pub fn admit(
        &mut self,
        cost: Cost,
        counters: &Counters,
        now_ns: u64,
        queued: impl FnOnce() -> QueuedDatagram,
    ) -> bool {
        if self.pay_by(cost, now_ns, now_ns) {
            return true;
        }
        let flow = self.flows.entry((cost.class, cost.flow)).or_default();
        let queued = queued();
        let bytes = queued.bytes.len() + OVERHEAD_BYTES;
        if (flow.queued_bytes + bytes) as u64 > self.limits.queue_bytes() {
            counters.count(DropReason::LimitQueueFull);
            return false;
        }
        if flow.queue.is_empty() {
            flow.deficit = 0;
            if let Some(turns) = self.turns.get_mut(cost.class.index()) {
                turns.push_back(cost.flow);
            }
        }
        flow.queued_bytes += bytes;
        flow.queue.push_back(Waiting { queued, bytes: cost.bytes, since_ns: now_ns });
        false
    }

    /// Tell the other children how many circuits wait here; before a round of `next`.
    pub fn share_out(&mut self, now_ns: u64) {
        self.limits.share_out([0, 1, 2].map(|class| self.turns.get(class).map_or(0, VecDeque::len)), now_ns);
    }

    /// What may leave now.
    pub fn next(&mut self, counters: &Counters, now_ns: u64) -> Option<QueuedDatagram> {
        for _ in Class::ALL {
            let class = Class::ALL.get(self.next_class).copied()?;
            self.next_class = (self.next_class + 1) % Class::ALL.len();
            if let Some(queued) = self.next_of(class, counters, now_ns) {
                return Some(queued);
            }
        }
        None
    }

    fn next_of(&mut self, class: Class, counters: &Counters, now_ns: u64) -> Option<QueuedDatagram> {
        let turns = self.turns.get_mut(class.index())?;
        let rates = self.limits.circuit_rates();
        let oldest_ns = now_ns.saturating_sub(self.limits.max_delay_ns());
        let mut held_back = 0;
        while held_back < turns.len().min(MAX_LOOKS) {
            let id = *turns.front()?;
            let flow = self.flows.get_mut(&(class, id))?;
            while flow.queue.front().is_some_and(|waiting| waiting.since_ns < oldest_ns) {
                flow.pop();
                counters.count(DropReason::LimitDelay);
            }
            let Some(first) = flow.queue.front() else {
                turns.pop_front();
                continue;
            };
            if !flow.permits(rates, first.bytes, now_ns) {
                turns.rotate_left(1);
                held_back += 1;
                continue;
            }
            if !self.limits.permit(class, first.bytes, now_ns, true) {
                // Another may go: up and down are limited apart.
                turns.rotate_left(1);
                held_back += 1;
                continue;
            }
            let size = first.queued.bytes.len();
            if flow.deficit < size {
                flow.deficit += QUANTUM_BYTES.max(size.div_ceil(8));
                turns.rotate_left(1);
                continue;
            }
            flow.deficit -= size;
            let sent = flow.pop()?;
            flow.take(rates, sent.bytes, self.limits.burst_ns(), now_ns);
            self.limits.take(class, sent.bytes, now_ns, true);
            self.limits.count(class, sent.bytes);
            if flow.queue.is_empty() {
                turns.pop_front();
            }
            return Some(sent.queued);
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::limits::tests::{memory, MS};

    const RELAYED_UP: usize = 0;
    const TOTAL_UP: usize = 6;

    fn cost(class: Class, flow: u32, bytes: u64) -> Cost {
        Cost::outwards(class, flow, bytes as usize, 0)
    }

    fn queued(flow: u32, bytes: u64) -> QueuedDatagram {
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        QueuedDatagram::new(Egress::tunnel(to, flow), &vec![0; bytes as usize])
    }

    /// Each flow offers a datagram of its size every `every` ms for `ms`; returns the bytes that each got through.
    fn run(shapers: &mut [Shaper], offers: &[(usize, Class, u32, u64, u64)], ms: u64) -> HashMap<u32, u64> {
        let counters = Counters::default();
        let mut sent = HashMap::new();
        for now in 1_000..1_000 + ms {
            for (shaper, class, flow, bytes, every) in offers {
                for _ in 0..(if *every == 0 { 20 } else { u64::from(now % every == 0) }) {
                    let cost = cost(*class, *flow, *bytes);
                    if shapers[*shaper].admit(cost, &counters, now * MS, || queued(*flow, *bytes)) {
                        *sent.entry(*flow).or_default() += bytes;
                    }
                }
            }
            for shaper in shapers.iter_mut() {
                shaper.share_out(now * MS);
                while let Some(queued) = shaper.next(&counters, now * MS) {
                    *sent.entry(queued.egress.circuit_id).or_default() += queued.bytes.len() as u64;
                }
            }
        }
        sent
    }

    fn jain(shares: &[u64]) -> f64 {
        let shares: Vec<f64> = shares.iter().map(|share| *share as f64).collect();
        let sum: f64 = shares.iter().sum();
        sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
    }

    #[test]
    fn greedy_circuits_share_a_rate_evenly_whatever_their_datagrams_size() {
        let mut shapers = [Shaper::new(Limits::new(memory(&[(RELAYED_UP, 4_000_000)], u64::MAX), 0).unwrap())];
        let offers: Vec<_> = (0..8).map(|flow| (0, Class::Relayed, flow, 300 + 150 * u64::from(flow), 0)).collect();
        let sent = run(&mut shapers, &offers, 2_000);
        let total: u64 = sent.values().sum();
        assert!((7_900_000..8_200_000).contains(&total), "{total}");
        assert!(jain(&sent.into_values().collect::<Vec<_>>()) > 0.99);
    }

    #[test]
    fn circuits_of_several_children_share_a_rate_evenly() {
        let words = memory(&[(TOTAL_UP, 4_000_000)], u64::MAX);
        let mut shapers: Vec<_> = [0, 1, 2].map(|slot| Shaper::new(Limits::new(words.clone(), slot).unwrap())).into();
        let at = [0, 0, 0, 0, 0, 1, 1, 2];
        let offers: Vec<_> = (0..8).map(|flow| (at[flow], Class::Relayed, flow as u32, 1400, 0)).collect();
        let sent = run(&mut shapers, &offers, 3_000);
        let total: u64 = sent.values().sum();
        assert!((11_600_000..12_400_000).contains(&total), "{total}");
        assert!(jain(&sent.values().copied().collect::<Vec<_>>()) > 0.97, "{sent:?}");
    }

    #[test]
    fn a_modest_circuit_gets_all_it_asks_for_beside_greedy_ones() {
        let mut shapers = [Shaper::new(Limits::new(memory(&[(RELAYED_UP, 1_000_000)], u64::MAX), 0).unwrap())];
        let mut offers: Vec<_> = (0..7).map(|flow| (0, Class::Relayed, flow, 1400, 0)).collect();
        offers.push((0, Class::Relayed, 99, 500, 10));
        let sent = run(&mut shapers, &offers, 2_000);
        assert!(sent[&99] > 95_000, "{sent:?}");
    }

    #[test]
    fn a_circuit_has_a_limit_of_its_own() {
        let mut shapers = [Shaper::new(Limits::new(memory(&[], 500_000), 0).unwrap())];
        let sent = run(&mut shapers, &[(0, Class::Exited, 1, 1000, 0), (0, Class::Exited, 2, 1000, 50)], 2_000);
        assert!((980_000..1_040_000).contains(&sent[&1]), "{sent:?}");
        assert_eq!(sent[&2], 40_000);
    }

    #[test]
    fn what_waited_too_long_and_what_has_no_room_is_dropped_and_counted() {
        let mut shaper = Shaper::new(Limits::new(memory(&[(RELAYED_UP, 0)], u64::MAX), 0).unwrap());
        let counters = Counters::default();
        for _ in 0..1_000 {
            assert!(!shaper.admit(cost(Class::Relayed, 1, 1400), &counters, 1_000 * MS, || queued(1, 1400)));
        }
        let full = counters.get(DropReason::LimitQueueFull);
        assert!((300..320).contains(&full), "{full}");
        assert!(shaper.next(&counters, 1_100 * MS).is_none());
        assert_eq!(counters.get(DropReason::LimitDelay), 0);
        assert!(shaper.next(&counters, 1_300 * MS).is_none());
        assert_eq!(counters.get(DropReason::LimitDelay), 1_000 - full);
        assert!(!shaper.is_waiting());
    }
}
