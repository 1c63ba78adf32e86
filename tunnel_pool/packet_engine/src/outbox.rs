//! Datagrams on their way out: written once into an arena, or left where they came in; grouped into
//! few system calls.

use std::net::SocketAddr;
use std::ops::Range;

/// The largest payload of a UDP datagram over IPv4.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;
/// Room for one datagram with everything that may be put around it.
pub const SLOT_BYTES: usize = 65_535 + 512;
const ARENA_BYTES: usize = 2 << 20;

/// Segments of one datagram train; older kernels take 64 at most (UDP_MAX_SEGMENTS).
const MAX_SEGMENTS: usize = 64;

/// Which of the engine's sockets a datagram leaves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// The tunnels' socket, for cells and for py-ipv8's other packets.
    Tunnel,
    /// The circuit's exit socket for the destination's address family.
    Exit(u32),
    /// The association's socket.
    Client(u32),
}

/// By which socket and to whom a datagram leaves.
#[derive(Clone, Copy, Debug)]
pub struct Egress {
    /// The socket that the datagram leaves by.
    pub via: Via,
    /// The destination.
    pub to: SocketAddr,
    /// Of a cell, 0 otherwise.
    pub circuit_id: u32,
}

impl Egress {
    /// Returns the egress of a cell to a neighbour. `circuit_id` is the one in the cell's header.
    pub fn tunnel(to: SocketAddr, circuit_id: u32) -> Self {
        Self { via: Via::Tunnel, to, circuit_id }
    }

    /// Returns the egress of a datagram to the world, by the exit socket of this circuit.
    pub fn exit(to: SocketAddr, circuit_id: u32) -> Self {
        Self { via: Via::Exit(circuit_id), to, circuit_id: 0 }
    }
}

/// Which buffer holds a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The outbox's own.
    InArena,
    /// Where it was received and opened (sys.rs, Inbox); it leaves before more is received.
    InInbox,
}

/// A datagram in the outbox.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The socket that the datagram leaves by.
    pub via: Via,
    /// The destination.
    pub to: SocketAddr,
    /// The circuit id of a cell, 0 otherwise.
    pub circuit_id: u32,
    /// The buffer that holds the datagram.
    pub storage: Storage,
    /// Its bytes in that buffer.
    pub at: Range<usize>,
}

/// What is to be sent, with the buffers where it lies.
pub struct Outgoing<'a> {
    /// The datagrams, sorted by socket, destination and circuit.
    pub entries: &'a [Entry],
    arena: &'a [u8],
    inbox: &'a [u8],
}

impl<'a> Outgoing<'a> {
    /// Returns the payload of an entry; empty if the entry's range is outside its buffer.
    pub fn bytes(&self, entry: &Entry) -> &'a [u8] {
        let buffer = match entry.storage {
            Storage::InArena => self.arena,
            Storage::InInbox => self.inbox,
        };
        buffer.get(entry.at.clone()).unwrap_or(&[])
    }
}

/// Entries of one socket to one destination, all of one size but the last, which may be shorter.
/// All cells of a train are of one circuit: the receiver's kernel gives a train to one process,
/// but may give each circuit to another.
#[derive(Debug, PartialEq, Eq)]
pub struct Train {
    /// The range of the train's datagrams in `Outgoing::entries`; 64 at most.
    pub entries: Range<usize>,
    /// The size in bytes of each datagram except the last.
    pub segment_bytes: usize,
}

/// The datagrams that leave in one round, and an arena for those that are not sent from the inbox.
pub struct Outbox {
    arena: Box<[u8]>,
    used: usize,
    entries: Vec<Entry>,
    uses_inbox: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            used: 0,
            entries: Vec::with_capacity(4096),
            uses_inbox: false,
        }
    }
}

impl Outbox {
    /// Whether one more datagram of any size fits.
    pub fn has_room(&self) -> bool {
        self.used + SLOT_BYTES <= self.arena.len()
    }

    /// Whether a train of datagrams fits, after which there is room for one of any size.
    pub fn has_room_for_a_train(&self) -> bool {
        self.used + 2 * SLOT_BYTES <= self.arena.len()
    }

    /// Returns whether no datagram is to be sent.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Where the next datagram is written: SLOT_BYTES, or nothing when there is no room.
    pub fn slot(&mut self) -> &mut [u8] {
        self.arena.get_mut(self.used..self.used + SLOT_BYTES).unwrap_or(&mut [])
    }

    /// Send what was written to `slot[written]`.
    pub fn push(&mut self, via: Via, to: SocketAddr, circuit_id: u32, written: Range<usize>) {
        let at = self.used + written.start..self.used + written.end;
        self.used = at.end;
        self.entries.push(Entry { via, to, circuit_id, storage: Storage::InArena, at });
    }

    /// Send what lies at these bytes of the inbox.
    pub fn push_received(&mut self, via: Via, to: SocketAddr, circuit_id: u32, at: Range<usize>) {
        self.uses_inbox = true;
        self.entries.push(Entry { via, to, circuit_id, storage: Storage::InInbox, at });
    }

    /// Whether something leaves from the inbox, so that nothing may be received into it.
    pub fn uses_inbox(&self) -> bool {
        self.uses_inbox
    }

    /// Everything, ordered by socket, destination and circuit, first come first served within each.
    pub fn sorted<'a>(&'a mut self, inbox: &'a [u8]) -> Outgoing<'a> {
        self.entries.sort_by_key(|entry| (entry.via, entry.to, entry.circuit_id));
        Outgoing { entries: &self.entries, arena: &self.arena, inbox }
    }

    /// Removes all datagrams; the arena and the inbox may be overwritten then.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
        self.uses_inbox = false;
    }
}

/// Cut sorted entries into trains; those of more bytes than their destination takes travel alone.
pub fn trains<'a>(
    entries: &'a [Entry],
    max_segment_bytes: impl Fn(SocketAddr) -> usize + 'a,
) -> impl Iterator<Item = Train> + 'a {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = entries.get(start)?;
        let segment_bytes = first.at.len();
        let mut total = segment_bytes;
        let mut end = start + 1;
        if segment_bytes <= max_segment_bytes(first.to) && segment_bytes > 0 {
            while let Some(next) = entries.get(end) {
                let bytes = next.at.len();
                let same = (next.via, next.to, next.circuit_id) == (first.via, first.to, first.circuit_id);
                if !same
                    || bytes == 0
                    || bytes > segment_bytes
                    || end - start == MAX_SEGMENTS
                    || total + bytes > MAX_DATAGRAM_BYTES
                {
                    break;
                }
                total += bytes;
                end += 1;
                if bytes < segment_bytes {
                    break;
                }
            }
        }
        let train = Train { entries: start..end, segment_bytes };
        start = end;
        Some(train)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(to: u16, bytes: usize) -> Entry {
        let to = SocketAddr::from(([127, 0, 0, 1], to));
        Entry { via: Via::Tunnel, to, circuit_id: 7, storage: Storage::InArena, at: 0..bytes }
    }

    #[test]
    fn circuits_travel_apart() {
        let of = |circuit_id| Entry { circuit_id, ..entry(1, 9) };
        let cut: Vec<_> = trains(&[of(1), of(1), of(2), of(2)], |_| 100).map(|train| train.entries).collect();
        assert_eq!(cut, [0..2, 2..4]);
    }

    #[test]
    fn equal_sizes_travel_together_and_a_shorter_one_ends_the_train() {
        let entries = [entry(1, 9), entry(1, 9), entry(1, 4), entry(1, 9), entry(2, 9), entry(2, 10)];
        let cut: Vec<_> = trains(&entries, |_| 100).map(|train| train.entries).collect();
        assert_eq!(cut, [0..3, 3..4, 4..5, 5..6]);
        assert_eq!(trains(&entries, |_| 8).count(), 6);
    }

    proptest! {
        #[test]
        fn every_entry_leaves_once_and_no_train_is_too_long(sizes in prop::collection::vec((0u16..3, 0usize..30_000), 0..300)) {
            let mut entries: Vec<_> = sizes.iter().map(|(to, bytes)| entry(*to, *bytes)).collect();
            entries.sort_by_key(|entry| entry.to);
            let mut next = 0;
            for train in trains(&entries, |_| 65_535) {
                prop_assert_eq!(train.entries.start, next);
                next = train.entries.end;
                let members = entries.get(train.entries).unwrap();
                prop_assert!(members.len() <= MAX_SEGMENTS);
                prop_assert!(members.len() == 1 || members.iter().map(|e| e.at.len()).sum::<usize>() <= MAX_DATAGRAM_BYTES);
                let (_, all_but_last) = members.split_last().unwrap();
                prop_assert!(all_but_last.iter().all(|e| e.at.len() == train.segment_bytes));
            }
            prop_assert_eq!(next, entries.len());
        }
    }
}
