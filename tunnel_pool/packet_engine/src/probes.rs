//! Datagrams of uTP (BEP 29) that are too large for one packet.
//!
//! uTP finds out how large its packets may be by sending a larger one now and then: if that is lost, it stays with the
//! smaller size. So such a packet is dropped when it first comes. As uTP can't cut it, the same packet comes again until it
//! arrives: it is let through, and travels as two fragments. A sender that takes this for a success (libtorrent does when
//! another packet was lost before it, utp_stream.cpp, resend_packet and ack_packet) fills its packets to just that size from
//! then on. Dropping each of them once would stop the connection, so that none is dropped any more. Pure.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::utp::{word, CONNECTION_AT, SEQUENCE_AT};

/// How many packets that were dropped, and connections that had one let through, are remembered; the oldest make room.
const MAX_REMEMBERED: usize = 64;
/// How many sizes of a connection are remembered: uTP halves the range that is left with each.
const MAX_SIZES: usize = 16;

#[derive(Debug)]
struct Connection {
    id: u16,
    /// The sizes of packets that were let through when they came again.
    passed: VecDeque<usize>,
    /// The largest size that the sender takes for one that arrives.
    taken: usize,
}

#[derive(Debug, Default)]
struct Seen {
    /// By connection and sequence number.
    dropped: VecDeque<(u16, u16)>,
    connections: VecDeque<Connection>,
}

/// What happened to the packets of one circuit's direction that were too large.
#[derive(Debug, Default)]
pub struct Probes(RefCell<Seen>);

fn remember<T>(list: &mut VecDeque<T>, most: usize, new: T) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(new);
}

impl Seen {
    fn connection(&mut self, id: u16) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|known| known.id == id)
    }

    fn let_through(&mut self, id: u16, bytes: usize) {
        match self.connection(id) {
            Some(known) if known.passed.contains(&bytes) => {}
            Some(known) => remember(&mut known.passed, MAX_SIZES, bytes),
            None => remember(
                &mut self.connections,
                MAX_REMEMBERED,
                Connection { id, passed: VecDeque::from([bytes]), taken: 0 },
            ),
        }
    }
}

impl Probes {
    /// Whether to drop a packet of uTP that is too large.
    pub fn drops(&self, packet: &[u8]) -> bool {
        let (Some(id), Some(sequence)) = (word(packet, CONNECTION_AT), word(packet, SEQUENCE_AT)) else {
            return false;
        };
        let seen = &mut *self.0.borrow_mut();
        if seen.dropped.contains(&(id, sequence)) {
            seen.let_through(id, packet.len());
            return false;
        }
        if let Some(known) = seen.connection(id) {
            if known.passed.contains(&packet.len()) {
                known.taken = known.taken.max(packet.len());
            }
            if packet.len() <= known.taken {
                return false;
            }
        }
        remember(&mut seen.dropped, MAX_REMEMBERED, (id, sequence));
        true
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
    fn a_packet_is_dropped_when_it_first_comes() {
        let probes = Probes::default();
        assert!(probes.drops(&packet(7, 1, 1400)));
        assert!(probes.drops(&packet(8, 1, 1400)));
        assert!(!probes.drops(&packet(7, 1, 1400)));
        assert!(!probes.drops(&packet(7, 1, 1400)), "the one that was let through may be lost, too");
        assert!(probes.drops(&packet(7, 2, 1370)), "its sender has learned, and tries a smaller size");
        assert!(!probes.drops(&[1; 10]), "no packet of uTP");
    }

    #[test]
    fn a_size_that_its_sender_takes_for_one_that_arrives_does() {
        let probes = Probes::default();
        assert!(probes.drops(&packet(7, 1, 1400)));
        assert!(!probes.drops(&packet(7, 1, 1400)));
        assert!(!probes.drops(&packet(7, 2, 1400)));
        assert!(!probes.drops(&packet(7, 3, 1370)), "the rest of what it had to send");
        assert!(probes.drops(&packet(8, 3, 1400)), "another connection");
        assert!(probes.drops(&packet(7, 4, 1420)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let probes = Probes::default();
        for number in 0..1000 {
            for id in [number + 10, 7] {
                assert!(probes.drops(&packet(id, number, 1400 + usize::from(number))));
                assert!(!probes.drops(&packet(id, number, 1400 + usize::from(number))));
            }
        }
        let seen = probes.0.borrow();
        assert_eq!((seen.dropped.len(), seen.connections.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(seen.connections.iter().all(|known| known.passed.len() <= MAX_SIZES));
    }
}
