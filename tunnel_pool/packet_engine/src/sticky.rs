//! Which circuit carries a destination's datagrams: kept while the circuit lives, since a remote
//! peer knows us by its exit's address. The twin of overlay/clients/sticky.py.

use std::collections::{HashMap, VecDeque};

/// The most destinations that a map remembers; those that were assigned the longest ago are evicted.
pub const MAX_DESTINATIONS: usize = 65536;

struct Destination {
    circuit_id: u32,
    /// The number of the assignment.
    number: u64,
    /// The association that sent to it last.
    asker: u32,
}

/// Keys are addresses as SOCKS5 encodes them.
#[derive(Default)]
pub struct StickyMap {
    destinations: HashMap<Box<[u8]>, Destination>,
    /// Assignments in their order; those that were replaced since have another number.
    oldest: VecDeque<(u64, Box<[u8]>)>,
    assignments: u64,
    count: HashMap<u32, usize>,
}

impl StickyMap {
    /// The destination's circuit, for something that this association sends now.
    pub fn get(&mut self, destination: &[u8], asker: u32) -> Option<u32> {
        let known = self.destinations.get_mut(destination)?;
        known.asker = asker;
        Some(known.circuit_id)
    }

    /// The destination's circuit.
    pub fn circuit_of(&self, destination: &[u8]) -> Option<u32> {
        self.destinations.get(destination).map(|known| known.circuit_id)
    }

    /// The association that sent to this destination last.
    pub fn asker(&self, destination: &[u8]) -> Option<u32> {
        self.destinations.get(destination).map(|known| known.asker)
    }

    /// Choose the ready circuit with the fewest destinations; None when none is ready.
    pub fn assign(&mut self, destination: &[u8], asker: u32, ready: impl Iterator<Item = u32>) -> Option<u32> {
        self.drop_destination(destination);
        let circuit_id = ready.min_by_key(|id| (self.count.get(id).copied().unwrap_or(0), *id))?;
        while self.destinations.len() >= MAX_DESTINATIONS {
            let Some((number, oldest)) = self.oldest.pop_front() else { break };
            if self.is_current(number, &oldest) {
                self.drop_destination(&oldest);
            }
        }
        if self.oldest.len() >= 2 * MAX_DESTINATIONS {
            let mut oldest = std::mem::take(&mut self.oldest);
            oldest.retain(|(number, destination)| self.is_current(*number, destination));
            self.oldest = oldest;
        }
        self.assignments += 1;
        let known = Destination { circuit_id, number: self.assignments, asker };
        self.destinations.insert(destination.into(), known);
        self.oldest.push_back((self.assignments, destination.into()));
        *self.count.entry(circuit_id).or_default() += 1;
        Some(circuit_id)
    }

    /// The circuit is gone; returns the destinations that it carried.
    pub fn forget_circuit(&mut self, circuit_id: u32) -> Vec<Box<[u8]>> {
        self.count.remove(&circuit_id);
        let orphans: Vec<_> =
            self.destinations.extract_if(|_, known| known.circuit_id == circuit_id).map(|(key, _)| key).collect();
        orphans
    }

    fn is_current(&self, number: u64, destination: &[u8]) -> bool {
        self.destinations.get(destination).is_some_and(|known| known.number == number)
    }

    fn drop_destination(&mut self, destination: &[u8]) {
        if let Some(known) = self.destinations.remove(destination) {
            if let Some(count) = self.count.get_mut(&known.circuit_id) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_stays() {
        let mut map = StickyMap::default();
        assert_eq!(map.assign(b"a", 9, [].into_iter()), None);
        assert_eq!(map.assign(b"a", 9, [1, 2].into_iter()), Some(1));
        assert_eq!(map.assign(b"b", 9, [1, 2].into_iter()), Some(2));
        assert_eq!(map.assign(b"c", 9, [1, 2].into_iter()), Some(1));
        assert_eq!(map.get(b"a", 9), Some(1));
        let mut orphans = map.forget_circuit(1);
        orphans.sort();
        assert_eq!(orphans, [b"a".to_vec().into(), b"c".to_vec().into()] as [Box<[u8]>; 2]);
        assert_eq!(map.get(b"a", 9), None);
        assert_eq!(map.assign(b"a", 9, [2].into_iter()), Some(2));
    }

    #[test]
    fn who_was_assigned_anew_is_no_longer_old() {
        let mut map = StickyMap::default();
        map.assign(b"x", 9, [1].into_iter());
        for number in 0..MAX_DESTINATIONS as u32 - 2 {
            map.assign(&number.to_be_bytes(), 9, [1].into_iter());
        }
        map.assign(b"x", 9, [2].into_iter());
        for number in 0..500u32 {
            map.assign(&(1 << 30 | number).to_be_bytes(), 9, [1].into_iter());
        }
        assert_eq!(map.get(b"x", 9), Some(2));
    }

    #[test]
    fn knows_who_sent_last() {
        let mut map = StickyMap::default();
        map.assign(b"a", 3, [1].into_iter());
        assert_eq!(map.asker(b"a"), Some(3));
        map.get(b"a", 4);
        assert_eq!(map.asker(b"a"), Some(4));
        map.forget_circuit(1);
        assert_eq!(map.asker(b"a"), None);
    }

    #[test]
    fn is_bounded() {
        let mut map = StickyMap::default();
        for number in 0..MAX_DESTINATIONS as u32 + 10 {
            map.assign(&number.to_be_bytes(), 9, [1].into_iter());
        }
        assert_eq!(map.destinations.len(), MAX_DESTINATIONS);
        assert_eq!(map.get(&0u32.to_be_bytes(), 9), None);
    }
}
