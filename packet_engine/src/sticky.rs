//! Which circuit carries a destination's datagrams: kept while the circuit lives, since a remote
//! peer knows us by its exit's address. The twin of overlay/sticky.py.

use std::collections::{HashMap, VecDeque};

pub const MAX_DESTINATIONS: usize = 65536;

/// Keys are addresses as SOCKS5 encodes them.
#[derive(Default)]
pub struct StickyMap {
    /// Circuit, and the number of the assignment.
    circuit_of: HashMap<Box<[u8]>, (u32, u64)>,
    /// Assignments in their order; those that were replaced since have another number.
    oldest: VecDeque<(u64, Box<[u8]>)>,
    assignments: u64,
    count: HashMap<u32, usize>,
}

impl StickyMap {
    pub fn get(&self, destination: &[u8]) -> Option<u32> {
        self.circuit_of.get(destination).map(|(circuit_id, _)| *circuit_id)
    }

    /// Choose the ready circuit with the fewest destinations; None when none is ready.
    pub fn assign(&mut self, destination: &[u8], ready: impl Iterator<Item = u32>) -> Option<u32> {
        self.drop_destination(destination);
        let circuit_id = ready.min_by_key(|id| (self.count.get(id).copied().unwrap_or(0), *id))?;
        while self.circuit_of.len() >= MAX_DESTINATIONS {
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
        self.circuit_of.insert(destination.into(), (circuit_id, self.assignments));
        self.oldest.push_back((self.assignments, destination.into()));
        *self.count.entry(circuit_id).or_default() += 1;
        Some(circuit_id)
    }

    /// The circuit is gone; returns the destinations that it carried.
    pub fn forget_circuit(&mut self, circuit_id: u32) -> Vec<Box<[u8]>> {
        self.count.remove(&circuit_id);
        let orphans: Vec<_> =
            self.circuit_of.extract_if(|_, (owner, _)| *owner == circuit_id).map(|(key, _)| key).collect();
        orphans
    }

    fn is_current(&self, number: u64, destination: &[u8]) -> bool {
        self.circuit_of.get(destination).is_some_and(|(_, current)| *current == number)
    }

    fn drop_destination(&mut self, destination: &[u8]) {
        if let Some((circuit_id, _)) = self.circuit_of.remove(destination) {
            if let Some(count) = self.count.get_mut(&circuit_id) {
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
        assert_eq!(map.assign(b"a", [].into_iter()), None);
        assert_eq!(map.assign(b"a", [1, 2].into_iter()), Some(1));
        assert_eq!(map.assign(b"b", [1, 2].into_iter()), Some(2));
        assert_eq!(map.assign(b"c", [1, 2].into_iter()), Some(1));
        assert_eq!(map.get(b"a"), Some(1));
        let mut orphans = map.forget_circuit(1);
        orphans.sort();
        assert_eq!(orphans, [b"a".to_vec().into(), b"c".to_vec().into()] as [Box<[u8]>; 2]);
        assert_eq!(map.get(b"a"), None);
        assert_eq!(map.assign(b"a", [2].into_iter()), Some(2));
    }

    #[test]
    fn who_was_assigned_anew_is_no_longer_old() {
        let mut map = StickyMap::default();
        map.assign(b"x", [1].into_iter());
        for number in 0..MAX_DESTINATIONS as u32 - 2 {
            map.assign(&number.to_be_bytes(), [1].into_iter());
        }
        map.assign(b"x", [2].into_iter());
        for number in 0..500u32 {
            map.assign(&(1 << 30 | number).to_be_bytes(), [1].into_iter());
        }
        assert_eq!(map.get(b"x"), Some(2));
    }

    #[test]
    fn is_bounded() {
        let mut map = StickyMap::default();
        for number in 0..MAX_DESTINATIONS as u32 + 10 {
            map.assign(&number.to_be_bytes(), [1].into_iter());
        }
        assert_eq!(map.circuit_of.len(), MAX_DESTINATIONS);
        assert_eq!(map.get(&0u32.to_be_bytes()), None);
    }
}
