//! The SOCKS5 server's associations that are served here, and which of them gets what comes in. The twin of
//! overlay/clients/clients.py.
//!
//! A client may have any number of associations, and several clients of a lane may have one each. Each gets the
//! answers to what it sent; what nobody asked for is for the usual one, where its lane has one, else for the newest.

use std::collections::HashMap;
use std::net::SocketAddr;

/// The hop count and the isolation group of clients and their circuits (overlay/ground/lanes.py), as one number.
pub type Lane = u32;

/// How many questions are remembered by circuit and port.
pub const MAX_ASKED: usize = 65536;

/// One UDP association of the SOCKS5 server.
pub struct Association {
    /// The lane of its client, and of the circuits that serve it.
    pub lane: Lane,
    /// The only address that its datagrams come from, and the one that datagrams for it are sent to.
    pub client: SocketAddr,
}

/// The associations that this child serves, and the questions that they sent.
#[derive(Default)]
pub struct Clients {
    /// By the order they were opened in.
    associations: Vec<(u32, Association)>,
    usual: HashMap<Lane, u32>,
    /// Whose datagram left last, by circuit and port, where an answer comes from another address than it went to: to
    /// a name, or over an end-to-end circuit.
    asked: HashMap<(u32, u16), u32>,
}

impl Clients {
    /// Adds an association as the newest one, replacing one with the same id.
    pub fn add(&mut self, id: u32, association: Association) {
        self.remove(id);
        self.associations.push((id, association));
    }

    /// Removes the association with this id, if there is one, also as the usual one of its lane.
    pub fn remove(&mut self, id: u32) {
        self.associations.retain(|(other, _)| *other != id);
        self.usual.retain(|_, usual| *usual != id);
    }

    /// Returns the association with this id.
    pub fn get(&self, id: u32) -> Option<&Association> {
        self.associations.iter().find(|(other, _)| *other == id).map(|(_, association)| association)
    }

    /// Let this association get what nobody of its lane asked for.
    pub fn set_usual(&mut self, id: u32) {
        if let Some(lane) = self.get(id).map(|association| association.lane) {
            self.usual.insert(lane, id);
        }
    }

    /// Remember who sent something over a circuit to a name, or to the other end.
    pub fn asked(&mut self, circuit_id: u32, port: u16, id: u32) {
        if self.asked.len() >= MAX_ASKED && !self.asked.contains_key(&(circuit_id, port)) {
            self.asked.clear();
        }
        self.asked.insert((circuit_id, port), id);
    }

    /// Forgets the questions that were sent over this circuit.
    pub fn forget_circuit(&mut self, circuit_id: u32) {
        self.asked.retain(|(of, _), _| *of != circuit_id);
    }

    /// The association that gets what comes over a circuit of this lane from a port. `asker` says who sent something
    /// to the address that it comes from; it is called only when there are several to choose from.
    pub fn for_answer(
        &self,
        lane: Lane,
        circuit_id: u32,
        port: u16,
        asker: impl FnOnce() -> Option<u32>,
    ) -> Option<(u32, SocketAddr)> {
        let mut of_lane = self
            .associations
            .iter()
            .rev()
            .filter(|(_, known)| known.lane == lane)
            .map(|(id, known)| (*id, known.client));
        let newest = of_lane.next()?;
        if of_lane.next().is_none() {
            return Some(newest);
        }
        let known = |id: &u32| self.get(*id).filter(|known| known.lane == lane).map(|known| (*id, known.client));
        let asked = || self.asked.get(&(circuit_id, port)).and_then(known);
        let usual = || self.usual.get(&lane).and_then(known);
        asker().as_ref().and_then(known).or_else(asked).or_else(usual).or(Some(newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(lanes: &[Lane]) -> Clients {
        let mut clients = Clients::default();
        for (id, lane) in (1..).zip(lanes) {
            clients.add(id, Association { lane: *lane, client: SocketAddr::from(([127, 0, 0, 1], id as u16)) });
        }
        clients
    }

    fn answered(clients: &Clients, circuit_id: u32, port: u16, asker: Option<u32>) -> Option<u32> {
        clients.for_answer(1, circuit_id, port, || asker).map(|(id, _)| id)
    }

    #[test]
    fn who_asked_is_answered() {
        let clients = clients(&[1, 2, 1, 1]);
        assert_eq!(answered(&clients, 7, 80, Some(1)), Some(1));
        assert_eq!(answered(&clients, 7, 80, Some(3)), Some(3));
        assert_eq!(answered(&clients, 7, 80, None), Some(4));
    }

    #[test]
    fn of_another_lane_or_none_is_not_answered() {
        let mut clients = clients(&[1, 2, 1]);
        assert_eq!(answered(&clients, 7, 80, Some(2)), Some(3));
        clients.remove(1);
        clients.remove(3);
        assert_eq!(answered(&clients, 7, 80, Some(1)), None);
    }

    #[test]
    fn who_asked_a_name_or_the_other_end_is_answered() {
        let mut clients = clients(&[1, 1, 1]);
        clients.asked(7, 80, 1);
        clients.asked(8, 1024, 2);
        assert_eq!(answered(&clients, 7, 80, None), Some(1));
        assert_eq!(answered(&clients, 7, 81, None), Some(3));
        assert_eq!(answered(&clients, 8, 1024, None), Some(2));
        clients.forget_circuit(7);
        assert_eq!(answered(&clients, 7, 80, None), Some(3));
        assert_eq!(answered(&clients, 8, 1024, None), Some(2));
    }

    #[test]
    fn what_nobody_asked_for_is_for_the_usual_one_while_it_is_there() {
        let mut clients = clients(&[1, 1, 1, 2]);
        clients.set_usual(2);
        clients.set_usual(4);
        assert_eq!(answered(&clients, 7, 80, None), Some(2));
        clients.remove(2);
        assert_eq!(answered(&clients, 7, 80, None), Some(3));
    }

    #[test]
    fn questions_are_bounded() {
        let mut clients = clients(&[1, 1]);
        for circuit_id in 0..MAX_ASKED as u32 + 10 {
            clients.asked(circuit_id, 80, 1);
        }
        assert!(clients.asked.len() <= MAX_ASKED);
    }
}
