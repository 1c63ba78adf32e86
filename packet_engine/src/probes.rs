//! Datagrams of uTP (BEP 29) that are too large for one packet.
//!
//! uTP finds out how large its packets may be by sending a larger one now and then: if that is lost, it stays with the
//! smaller size. So such a packet is dropped when it first comes. As uTP can't cut it, the same packet comes again until it
//! arrives: it is let through, and travels as two fragments. A sender that takes this for a success (libtorrent does when
//! another packet was lost before it, utp_stream.cpp, resend_packet and ack_packet) fills its packets to that size from then
//! on, so that no packet of the connection is dropped any more which is not larger. Pure.

use std::cell::RefCell;
use std::collections::VecDeque;

/// How many packets that were dropped, and connections that had one let through, are remembered; the oldest make room.
const MAX_REMEMBERED: usize = 64;
const CONNECTION_AT: usize = 2;
const SEQUENCE_AT: usize = 16;

#[derive(Debug, Default)]
struct Seen {
    /// By connection and sequence number.
    dropped: VecDeque<(u16, u16)>,
    /// The largest packet of a connection that was let through.
    passed: VecDeque<(u16, usize)>,
}

/// What happened to the packets of one circuit's direction that were too large.
#[derive(Debug, Default)]
pub struct Probes(RefCell<Seen>);

fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn remember<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() >= MAX_REMEMBERED {
        list.pop_front();
    }
    list.push_back(new);
}

impl Probes {
    /// Whether to drop a packet of uTP that is too large.
    pub fn drops(&self, packet: &[u8]) -> bool {
        let (Some(connection), Some(sequence)) = (word(packet, CONNECTION_AT), word(packet, SEQUENCE_AT)) else {
            return false;
        };
        let seen = &mut *self.0.borrow_mut();
        let known = seen.passed.iter().position(|(of, _)| *of == connection);
        if known.and_then(|at| seen.passed.get(at)).is_some_and(|(_, bytes)| packet.len() <= *bytes) {
            return false;
        }
        if !seen.dropped.contains(&(connection, sequence)) {
            remember(&mut seen.dropped, (connection, sequence));
            return true;
        }
        if let Some(at) = known {
            seen.passed.remove(at);
        }
        remember(&mut seen.passed, (connection, packet.len()));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(connection: u16, sequence: u16, bytes: usize) -> Vec<u8> {
        let [a, b] = connection.to_be_bytes();
        let [c, d] = sequence.to_be_bytes();
        let mut packet = [&[1, 0, a, b][..], &[0; 12], &[c, d, 0, 0]].concat();
        packet.resize(bytes, 0);
        packet
    }

    #[test]
    fn each_size_of_a_connection_is_dropped_until_a_packet_of_it_comes_again() {
        let probes = Probes::default();
        assert!(probes.drops(&packet(7, 1, 1400)));
        assert!(probes.drops(&packet(8, 1, 1400)));
        assert!(probes.drops(&packet(7, 2, 1400)));
        assert!(!probes.drops(&packet(7, 1, 1400)));
        assert!(!probes.drops(&packet(7, 1, 1400)), "the one that was let through may be lost, too");
        assert!(!probes.drops(&packet(7, 3, 1400)), "its sender thinks that this size arrives");
        assert!(probes.drops(&packet(8, 3, 1400)));
        assert!(probes.drops(&packet(7, 4, 1420)));
        assert!(!probes.drops(&packet(7, 4, 1420)));
        assert!(!probes.drops(&packet(7, 5, 1410)));
        assert!(!probes.drops(&[1; 10]), "no packet of uTP");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let probes = Probes::default();
        for connection in 0..1000 {
            assert!(probes.drops(&packet(connection, 0, 1400)));
            assert!(!probes.drops(&packet(connection, 0, 1400)));
        }
        assert_eq!((probes.0.borrow().dropped.len(), probes.0.borrow().passed.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
