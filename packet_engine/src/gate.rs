//! The way out: what may leave now goes into the outbox, what a limit holds back waits.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::counters::{Counters, Drop};
use crate::outbox::{Outbox, Via};
use crate::shaper::{Parcel, Shaper, Toll};

/// How a datagram leaves.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub via: Via,
    pub to: SocketAddr,
    /// Of a cell, 0 otherwise.
    pub circuit_id: u32,
}

impl Way {
    pub fn tunnel(to: SocketAddr, circuit_id: u32) -> Self {
        Self { via: Via::Tunnel, to, circuit_id }
    }

    pub fn exit(to: SocketAddr, circuit_id: u32) -> Self {
        Self { via: Via::Exit(circuit_id), to, circuit_id: 0 }
    }
}

pub struct Gate {
    pub outbox: Outbox,
    /// None: nothing is ever limited.
    pub shaper: Option<Shaper>,
    /// Of CLOCK_MONOTONIC.
    pub now_ns: u64,
    counters: Arc<Counters>,
}

impl Gate {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { outbox: Outbox::default(), shaper: None, now_ns: 0, counters }
    }

    /// Send what was written to `slot[written]`, when its toll can be paid.
    pub fn send(&mut self, toll: Toll, way: Way, written: Range<usize>) {
        let bytes = self.outbox.slot().get(written.clone()).unwrap_or(&[]);
        if admits(&mut self.shaper, &self.counters, self.now_ns, toll, || Parcel::new(way, bytes)) {
            self.outbox.push(way.via, way.to, way.circuit_id, written);
        }
    }

    /// Send these bytes of a datagram that lies at `place` of the inbox, when their toll can be paid.
    pub fn send_received(&mut self, toll: Toll, way: Way, datagram: &[u8], bytes: Range<usize>, place: usize) {
        let sent = datagram.get(bytes.clone()).unwrap_or(&[]);
        if admits(&mut self.shaper, &self.counters, self.now_ns, toll, || Parcel::new(way, sent)) {
            self.outbox.push_received(way.via, way.to, way.circuit_id, place + bytes.start..place + bytes.end);
        }
    }

    /// Pay for what stays here and can't wait.
    pub fn pay(&mut self, toll: Toll) -> Result<(), Drop> {
        let paid = self.shaper.as_mut().is_none_or(|shaper| shaper.pay_ahead(toll, self.now_ns));
        paid.then_some(()).ok_or(Drop::LimitDelay)
    }

    pub fn is_waiting(&self) -> bool {
        self.shaper.as_ref().is_some_and(Shaper::is_waiting)
    }

    /// Before a round of `release`.
    pub fn share_out(&mut self) {
        if let Some(shaper) = &mut self.shaper {
            shaper.share_out(self.now_ns);
        }
    }

    /// Put what may leave now into the outbox; true when there is more than fits.
    pub fn release(&mut self) -> bool {
        let Some(shaper) = &mut self.shaper else { return false };
        while self.outbox.has_room() {
            let Some(Parcel { way, bytes }) = shaper.next(&self.counters, self.now_ns) else { return false };
            if let Some(place) = self.outbox.slot().get_mut(..bytes.len()) {
                place.copy_from_slice(&bytes);
                self.outbox.push(way.via, way.to, way.circuit_id, 0..bytes.len());
            }
        }
        true
    }
}

/// Whether a datagram may leave now; one that may not waits as `parcel`, or is dropped and counted.
fn admits(
    shaper: &mut Option<Shaper>,
    counters: &Counters,
    now_ns: u64,
    toll: Toll,
    parcel: impl FnOnce() -> Parcel,
) -> bool {
    shaper.as_mut().is_none_or(|shaper| shaper.admit(toll, counters, now_ns, parcel))
}
