//! Datagrams of uTP (BEP 29) that are too large for one packet.
//!
//! uTP finds out how large its packets may be by sending a larger one now and then: if that is lost, it stays with the
//! smaller size. So the first such packet is dropped. The same packet comes again, as uTP can't cut it, and is let through:
//! it travels as two fragments. Pure.

use std::cell::RefCell;
use std::collections::VecDeque;

/// How many packets that were dropped are remembered; the oldest make room.
const MAX_REMEMBERED: usize = 64;
const CONNECTION_AT: usize = 2;
const SEQUENCE_AT: usize = 16;

/// The packets of one circuit's direction that were dropped, by connection and sequence number.
#[derive(Debug, Default)]
pub struct Probes(RefCell<VecDeque<(u16, u16)>>);

fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

impl Probes {
    /// Whether to drop a packet of uTP that is too large: it is dropped once.
    pub fn drops(&self, packet: &[u8]) -> bool {
        let (Some(connection), Some(sequence)) = (word(packet, CONNECTION_AT), word(packet, SEQUENCE_AT)) else {
            return false;
        };
        let mut dropped = self.0.borrow_mut();
        if let Some(at) = dropped.iter().position(|known| *known == (connection, sequence)) {
            dropped.remove(at);
            return false;
        }
        if dropped.len() >= MAX_REMEMBERED {
            dropped.pop_front();
        }
        dropped.push_back((connection, sequence));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(connection: u16, sequence: u16) -> Vec<u8> {
        let [a, b] = connection.to_be_bytes();
        let [c, d] = sequence.to_be_bytes();
        [&[1, 0, a, b][..], &[0; 12], &[c, d, 0, 0], &[0; 1400]].concat()
    }

    #[test]
    fn a_packet_is_dropped_once_and_what_is_remembered_is_bounded() {
        let probes = Probes::default();
        assert!(probes.drops(&packet(7, 1)));
        assert!(probes.drops(&packet(8, 1)));
        assert!(!probes.drops(&packet(7, 1)));
        assert!(probes.drops(&packet(7, 1)));
        assert!((0..1000).all(|sequence| probes.drops(&packet(9, sequence))));
        assert_eq!(probes.0.borrow().len(), MAX_REMEMBERED);
        assert!(!probes.drops(&[1; 10]));
    }
}
