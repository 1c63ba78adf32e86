//! How QUIC's packets travel in cells: whole, or in two halves where the way is too narrow for a packet of QUIC, which has
//! at least 1,200 bytes (RFC 9000, 14).
//!
//! ```text
//! stream message:  32 | 0 | packet
//!                  32 | 1 | number (1) | first half
//!                  32 | 2 | number (1) | second half
//! ```

use bytes::BytesMut;

use crate::cell::STREAM_ID;

/// Bytes in front of a whole packet in its message: the message id and the kind.
pub const WHOLE_OVERHEAD_BYTES: usize = 2;
const HALF_OVERHEAD_BYTES: usize = 3;
const WHOLE: u8 = 0;
const FIRST_HALF: u8 = 1;
const SECOND_HALF: u8 = 2;

/// How many halves wait for their other half; the oldest make room.
const MAX_WAITING: usize = 8;
/// A larger message need not have been cut.
const MAX_HALF_BYTES: usize = 1500;

/// A packet as one message or two.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    head: [u8; HALF_OVERHEAD_BYTES],
    head_bytes: usize,
    rest: &'a [u8],
}

impl Message<'_> {
    /// Returns the length in bytes, including the message id.
    pub fn len(&self) -> usize {
        self.head_bytes + self.rest.len()
    }

    /// Returns false, since every message has an id.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Write it to the start of a buffer; returns its length, None when there is no room.
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let (head, rest) = buffer.split_at_mut_checked(self.head_bytes)?;
        head.copy_from_slice(self.head.get(..self.head_bytes)?);
        rest.get_mut(..self.rest.len())?.copy_from_slice(self.rest);
        Some(self.len())
    }
}

/// Cuts packets into messages.
#[derive(Debug, Default)]
pub struct Splitter {
    number: u8,
}

impl Splitter {
    /// The messages that a packet travels in: one, if it is no larger than `largest`, or two.
    pub fn messages<'a>(&mut self, packet: &'a [u8], largest: usize) -> [Option<Message<'a>>; 2] {
        if packet.len() + WHOLE_OVERHEAD_BYTES <= largest {
            let head = [STREAM_ID, WHOLE, 0];
            return [Some(Message { head, head_bytes: WHOLE_OVERHEAD_BYTES, rest: packet }), None];
        }
        self.number = self.number.wrapping_add(1);
        let (first, second) = packet.split_at(packet.len().div_ceil(2));
        [(FIRST_HALF, first), (SECOND_HALF, second)].map(|(kind, rest)| {
            let head = [STREAM_ID, kind, self.number];
            Some(Message { head, head_bytes: HALF_OVERHEAD_BYTES, rest })
        })
    }
}

struct Half {
    kind: u8,
    number: u8,
    bytes: Vec<u8>,
}

/// What a message gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined {
    /// A whole packet, which is not checked here.
    Packet(BytesMut),
    /// The other half has not come yet.
    Half,
    /// The message has an unknown kind, or is longer than a half may be.
    Malformed,
}

/// Joins halves to packets.
#[derive(Default)]
pub struct Joiner {
    waiting: Vec<Half>,
}

impl Joiner {
    /// The packet that a message holds or completes; `message` has the message id in front.
    pub fn packet(&mut self, message: &[u8]) -> Joined {
        match message {
            [STREAM_ID, WHOLE, packet @ ..] => Joined::Packet(BytesMut::from(packet)),
            [STREAM_ID, kind @ (FIRST_HALF | SECOND_HALF), number, half @ ..] if half.len() <= MAX_HALF_BYTES => {
                self.join(*kind, *number, half)
            }
            _ => Joined::Malformed,
        }
    }

    fn join(&mut self, kind: u8, number: u8, half: &[u8]) -> Joined {
        let other = self.waiting.iter().position(|other| other.number == number && other.kind != kind);
        let Some(other) = other.map(|at| self.waiting.remove(at)) else {
            if self.waiting.len() >= MAX_WAITING {
                self.waiting.remove(0);
            }
            self.waiting.push(Half { kind, number, bytes: half.to_vec() });
            return Joined::Half;
        };
        let (first, second) = if kind == FIRST_HALF { (half, &other.bytes[..]) } else { (&other.bytes[..], half) };
        let mut packet = BytesMut::with_capacity(first.len() + second.len());
        packet.extend_from_slice(first);
        packet.extend_from_slice(second);
        Joined::Packet(packet)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(message: &Message<'_>) -> Vec<u8> {
        let mut buffer = vec![0; 2000];
        let length = message.write(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    fn whole(packet: &[u8]) -> Joined {
        Joined::Packet(BytesMut::from(packet))
    }

    proptest! {
        #[test]
        fn a_packet_comes_out_as_it_went_in(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 1..12),
            largest in 800usize..1600,
            turned: bool,
        ) {
            let (mut splitter, mut joiner) = (Splitter::default(), Joiner::default());
            for packet in packets {
                let mut messages: Vec<_> = splitter.messages(&packet, largest).into_iter().flatten().collect();
                if turned {
                    messages.reverse();
                }
                let joined: Vec<_> = messages.iter().map(|message| {
                    assert!(message.len() <= largest);
                    joiner.packet(&written(message))
                }).filter(|joined| *joined != Joined::Half).collect();
                prop_assert_eq!(joined, [whole(&packet)]);
            }
        }

        #[test]
        fn no_message_panics_or_keeps_more_than_some_halves(
            messages in prop::collection::vec((0u8..4, any::<u8>(), prop::collection::vec(any::<u8>(), 0..9)), 0..60),
        ) {
            let mut joiner = Joiner::default();
            for (kind, number, rest) in messages {
                let _ = joiner.packet(&[&[STREAM_ID, kind, number][..], &rest].concat());
                prop_assert!(joiner.waiting.len() <= MAX_WAITING);
            }
        }
    }

    #[test]
    fn halves_of_two_packets_may_come_mixed_and_a_lost_half_costs_its_packet_alone() {
        let (mut splitter, mut joiner) = (Splitter::default(), Joiner::default());
        let mut cut = |packet: &[u8]| {
            splitter.messages(packet, 1000).into_iter().flatten().map(|half| written(&half)).collect::<Vec<_>>()
        };
        let (one, lost, two) = (cut(&[1; 1200]), cut(&[9; 1200]), cut(&[2; 1200]));
        assert_eq!(joiner.packet(one.first().unwrap()), Joined::Half);
        assert_eq!(joiner.packet(lost.last().unwrap()), Joined::Half);
        assert_eq!(joiner.packet(two.first().unwrap()), Joined::Half);
        assert_eq!(joiner.packet(two.last().unwrap()), whole(&[2; 1200]));
        assert_eq!(joiner.packet(one.last().unwrap()), whole(&[1; 1200]));
    }
}
