//! The way out: what may leave now goes into the outbox, what a limit holds back waits.

use std::ops::Range;
use std::sync::Arc;

use crate::counters::{Counters, DropReason};
use crate::outbox::{Egress, Outbox};
use crate::shaper::{Cost, QueuedDatagram, Shaper};

/// The outbox, and the limits in front of it. Python's packets, and its cells for circuits of ours and for relays, go
/// into the outbox past the limits.
pub struct Gate {
    /// The datagrams that leave in this round.
    pub outbox: Outbox,
    /// None: nothing is ever limited.
    pub shaper: Option<Shaper>,
    /// Of CLOCK_MONOTONIC.
    pub now_ns: u64,
    counters: Arc<Counters>,
}

impl Gate {
    /// Creates a gate with an empty outbox and without limits.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { outbox: Outbox::default(), shaper: None, now_ns: 0, counters }
    }

    /// Send what was written to `slot[written]`, when its cost can be paid.
    pub fn send(&mut self, cost: Cost, egress: Egress, written: Range<usize>) {
        let bytes = self.outbox.slot().get(written.clone()).unwrap_or(&[]);
        if admits(&mut self.shaper, &self.counters, self.now_ns, cost, || QueuedDatagram::new(egress, bytes)) {
            self.outbox.push(egress.via, egress.to, egress.circuit_id, written);
        }
    }

    /// Send these bytes of a datagram that lies at `place` of the inbox, when their cost can be paid.
    pub fn send_received(&mut self, cost: Cost, egress: Egress, datagram: &[u8], bytes: Range<usize>, place: usize) {
        let sent = datagram.get(bytes.clone()).unwrap_or(&[]);
        if admits(&mut self.shaper, &self.counters, self.now_ns, cost, || QueuedDatagram::new(egress, sent)) {
            self.outbox.push_received(egress.via, egress.to, egress.circuit_id, place + bytes.start..place + bytes.end);
        }
    }

    /// Pay for a cell that goes to Python, and so can't wait in a queue.
    pub fn pay(&mut self, cost: Cost) -> Result<(), DropReason> {
        let paid = self.shaper.as_mut().is_none_or(|shaper| shaper.pay_ahead(cost, self.now_ns));
        paid.then_some(()).ok_or(DropReason::LimitDelay)
    }

    /// Returns whether a datagram waits for a limit.
    pub fn is_waiting(&self) -> bool {
        self.shaper.as_ref().is_some_and(Shaper::is_waiting)
    }

    /// Compute this child's share of the limits; call it before a round of `release`.
    pub fn share_out(&mut self) {
        if let Some(shaper) = &mut self.shaper {
            shaper.share_out(self.now_ns);
        }
    }

    /// Put what may leave now into the outbox; true when there is more than fits.
    pub fn release(&mut self) -> bool {
        let Some(shaper) = &mut self.shaper else { return false };
        while self.outbox.has_room() {
            let Some(QueuedDatagram { egress, bytes }) = shaper.next(&self.counters, self.now_ns) else { return false };
            if let Some(place) = self.outbox.slot().get_mut(..bytes.len()) {
                place.copy_from_slice(&bytes);
                self.outbox.push(egress.via, egress.to, egress.circuit_id, 0..bytes.len());
            }
        }
        true
    }
}

/// Whether a datagram may leave now; one that may not waits as `queued`, or is dropped and counted.
fn admits(
    shaper: &mut Option<Shaper>,
    counters: &Counters,
    now_ns: u64,
    cost: Cost,
    queued: impl FnOnce() -> QueuedDatagram,
) -> bool {
    shaper.as_mut().is_none_or(|shaper| shaper.admit(cost, counters, now_ns, queued))
}
