//! To which of our addresses each neighbour writes. A machine with several addresses would answer from the one that its
//! routes name, and who asked would not know the answer for one.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

/// Past so many, all are forgotten: those who write on are known again with their next packet.
const MAX_KNOWN: usize = 1 << 14;

/// Where packets of each neighbour came in last.
#[derive(Default)]
pub struct Arrivals(HashMap<SocketAddr, Ipv4Addr>);

impl Arrivals {
    /// A packet of a neighbour came to this address of ours.
    pub fn came(&mut self, from: SocketAddr, to: Ipv4Addr) {
        if self.0.get(&from) == Some(&to) {
            return;
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        self.0.insert(from, to);
    }

    /// The address of ours that a neighbour knows; None where that is the kernel's to choose.
    pub fn at(&self, neighbour: SocketAddr) -> Option<Ipv4Addr> {
        self.0.get(&neighbour).copied()
    }

    /// Let the kernel choose again, as nothing can leave from that address; returns whether one was known.
    pub fn forget(&mut self, neighbour: SocketAddr) -> bool {
        self.0.remove(&neighbour).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_address_holds_and_there_is_a_bound() {
        let mut arrivals = Arrivals::default();
        let neighbour = SocketAddr::from(([127, 0, 0, 1], 7));
        let ours = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
        assert_eq!(arrivals.at(neighbour), None);
        for to in ours {
            arrivals.came(neighbour, to);
            assert_eq!(arrivals.at(neighbour), Some(to));
        }
        assert!(arrivals.forget(neighbour));
        assert!(!arrivals.forget(neighbour));
        for number in 0..3 * MAX_KNOWN as u32 {
            let [a, b, c, d] = number.to_be_bytes();
            arrivals.came(SocketAddr::from(([a, b, c, d], 7)), Ipv4Addr::LOCALHOST);
        }
        assert!(arrivals.0.len() <= MAX_KNOWN);
    }
}
