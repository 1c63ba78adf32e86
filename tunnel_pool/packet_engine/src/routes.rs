//! The routing tables: circuits of ours, relays and exits for others, SOCKS5 associations.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::address::{self, Destination};
use crate::cell::MESSAGE_AT;
use crate::clients::{Clients, Lane};
use crate::counters::{DropReason, RouteStats};
use crate::keys::{Direction, SessionKeys, LAYER_BYTES};
use crate::limits::OwnBucket;
use crate::probes::Probes;
use crate::rules::Contacts;
use crate::sticky::StickyMap;
use crate::strangers::Strangers;
use crate::streams::dials::Dials;

/// py-ipv8's CIRCUIT_TYPE_*, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Its last hop is an exit, which takes datagrams for any destination.
    Data,
    /// It ends at another downloader or seeder; its data is for clients, whatever it looks like.
    EndToEnd,
    /// Any other type, such as a circuit to an introduction point; py-ipv8 gets all data that it carries.
    Other,
}

/// A circuit of ours. Layers are ordered from the first hop on.
pub struct Circuit {
    /// The address that its cells are sent to, and the only one that data may come from.
    pub first_hop: SocketAddr,
    /// The keys of each hop; empty before the first hop has answered.
    pub layers: Vec<Arc<SessionKeys>>,
    /// The keys of the other end of an end-to-end circuit, and the direction that we send in.
    pub end_to_end: Option<(Arc<SessionKeys>, Direction)>,
    /// Which clients it serves.
    pub lane: Lane,
    /// Its type, which decides who gets the data that it carries.
    pub purpose: Purpose,
    /// What its other end is known as to clients, if it is an end-to-end circuit (ends.rs).
    pub known_as: u32,
    /// All hops are there, and it is not closing.
    pub ready: bool,
    /// The most bytes of a message that travel in one packet.
    pub largest_message: usize,
    /// The state of uTP packets from our clients that are too large.
    pub probes: Probes,
    /// Streams that its other end opens.
    pub guests: OwnBucket,
    /// The last node may speak streams, so that a connection is tried.
    pub tries_streams: bool,
    /// It does not, or not any more.
    pub is_silent: bool,
    /// Its exit says that it reaches IPv6 destinations.
    pub reaches_ipv6: bool,
    /// Ports to which its exit let no stream go.
    pub forbidden_ports: HashSet<u16>,
    /// The number of cells sent with the relay_early flag. From `Settings::max_relay_early` on, only EXTEND gets the
    /// flag.
    pub relay_early_count: Cell<u32>,
    /// The bytes of its cells, and its streams; read by Python.
    pub stats: Arc<RouteStats>,
}

impl Circuit {
    /// A circuit that is ready, to an exit or to nobody in particular, and tries no streams.
    pub fn new(first_hop: SocketAddr, layers: Vec<Arc<SessionKeys>>, lane: Lane, purpose: Purpose) -> Self {
        Self {
            first_hop,
            layers,
            end_to_end: None,
            lane,
            purpose,
            known_as: 0,
            ready: true,
            largest_message: largest_message(first_hop, MAX_PACKET_BYTES, USUAL_LAYERS),
            probes: Probes::default(),
            guests: OwnBucket::default(),
            tries_streams: false,
            is_silent: false,
            reaches_ipv6: false,
            forbidden_ports: HashSet::new(),
            relay_early_count: 0.into(),
            stats: Arc::default(),
        }
    }

    /// How many layers its cells have when they leave; one to a rendezvous point has a hop more than others.
    pub fn layers_in_all(&self) -> usize {
        self.layers.len() + usize::from(self.end_to_end.is_some())
    }

    /// Whether the other end of an end-to-end circuit may begin a connection: it is the downloader's.
    pub fn serves_streams(&self) -> bool {
        self.is_linked() && matches!(self.end_to_end, Some((_, Direction::Forward)))
    }

    /// An end-to-end circuit whose other end can read what we send.
    pub fn is_linked(&self) -> bool {
        self.ready && self.purpose == Purpose::EndToEnd && self.end_to_end.is_some()
    }

    /// Whether datagrams may use it: not before all hops are there, and not while a rendezvous point
    /// could read what is for the other end.
    pub fn may_carry(&self) -> bool {
        self.ready && (self.purpose != Purpose::EndToEnd || self.end_to_end.is_some())
    }
}

/// One direction of a relayed circuit, under the id that cells arrive with (py-ipv8's RelayRoute).
pub struct Relay {
    /// The circuit id that cells leave with, under which the table has the other direction.
    pub next_id: u32,
    /// The address that cells are sent to.
    pub to: SocketAddr,
    /// The keys that this node shares with the circuit's originator; at a rendezvous point, with that of the circuit
    /// that cells arrive on.
    pub keys: Arc<SessionKeys>,
    /// `Forward`: a layer is removed from cells. `Backward`: a layer is added. Ignored at a rendezvous point.
    pub direction: Direction,
    /// This node is the rendezvous point of two circuits: it removes a layer of one and adds a layer of the other.
    pub rendezvous: bool,
    /// The number of cells passed on, with or without the relay_early flag, as py-ipv8 counts them. From
    /// `Settings::max_relay_early` on, cells with the flag are dropped.
    pub relay_early_count: Cell<u32>,
    /// The bytes of cells sent to `to` and received from there; read by Python.
    pub stats: Arc<RouteStats>,
}

/// A circuit of another node that ends here.
pub struct Exit {
    /// The address that cells are sent to.
    pub previous_hop: SocketAddr,
    /// The keys that this node shares with the circuit's originator.
    pub keys: Arc<SessionKeys>,
    /// As in `Circuit`.
    pub largest_message: usize,
    /// The state of uTP packets from outside that are too large.
    pub probes: Probes,
    /// Its sockets are open, or about to be.
    pub enabled: bool,
    /// The destinations that the operator's rules bound.
    pub contacts: Contacts,
    /// The recent destinations, by which strangers are recognized.
    pub strangers: Strangers,
    /// Who connects to it by TCP (streams/doors.rs).
    pub callers: OwnBucket,
    /// The same by address.
    pub callers_by: HashMap<IpAddr, OwnBucket>,
    /// It can be called by TCP.
    pub has_door: bool,
    /// The rate of its messages that are passed on to Python.
    pub messages: OwnBucket,
    /// The TCP connections of its streams.
    pub dials: Dials,
    /// The payload bytes sent to and received from the world, and its streams; read by Python.
    pub stats: Arc<RouteStats>,
}

impl Exit {
    /// Creates an exit without sockets, which are opened for its first datagram.
    pub fn new(previous_hop: SocketAddr, keys: Arc<SessionKeys>, stats: Arc<RouteStats>) -> Self {
        Self {
            previous_hop,
            keys,
            largest_message: largest_message(previous_hop, MAX_PACKET_BYTES, USUAL_LAYERS),
            probes: Probes::default(),
            enabled: false,
            contacts: Contacts::default(),
            strangers: Strangers::default(),
            callers: OwnBucket::default(),
            callers_by: HashMap::new(),
            has_door: false,
            messages: OwnBucket::default(),
            dials: Dials::default(),
            stats,
        }
    }
}

/// Where nothing is known of a path, it takes what Ethernet takes.
pub const MAX_PACKET_BYTES: usize = 1500;
/// The layers that a cell has on its way where nothing else is known: those of three hops, and one between both ends.
pub const USUAL_LAYERS: usize = 4;
const IPV4_UDP_BYTES: usize = 20 + 8;
const IPV6_UDP_BYTES: usize = 40 + 8;

/// The most bytes of a message whose cell fits one packet on its whole way, if that is no narrower than its start, where
/// a packet may have so many.
pub fn largest_message(neighbour: SocketAddr, packet_bytes: usize, layers: usize) -> usize {
    let headers = if neighbour.is_ipv4() { IPV4_UDP_BYTES } else { IPV6_UDP_BYTES };
    packet_bytes.min(MAX_PACKET_BYTES).saturating_sub(headers + MESSAGE_AT + layers.max(USUAL_LAYERS) * LAYER_BYTES)
}

/// The routing tables of one child.
#[derive(Default)]
pub struct Routes {
    /// The circuits of ours, by circuit id.
    pub circuits: HashMap<u32, Circuit>,
    /// The relayed circuits, each direction by the circuit id that its cells arrive with.
    pub relays: HashMap<u32, Relay>,
    /// The circuits of other nodes that end here, by circuit id.
    pub exits: HashMap<u32, Exit>,
    /// The associations of SOCKS5 clients.
    pub clients: Clients,
    /// The circuit of each destination, by lane.
    pub sticky: HashMap<Lane, StickyMap>,
    /// Circuits under whose outside address others are told to find us, and what strangers may send over each.
    announced: HashMap<u32, OwnBucket>,
    /// Circuits by what their other ends are known as.
    ends: HashMap<(Lane, u32), u32>,
    neighbours: HashSet<IpAddr>,
    neighbours_ms: u64,
}

/// Datagrams a second that the main process gets of those whom nobody asked, over one circuit.
const STRANGERS_PER_S: u64 = 500;
const STRANGERS_BURST_NS: u64 = 1_000_000_000;
/// How old what `has_neighbour` knows may be.
const NEIGHBOURS_MS: u64 = 1000;

impl Routes {
    /// Whether circuits that are relayed or end here come from this address.
    pub fn has_neighbour(&mut self, ip: IpAddr, now_ms: u64) -> bool {
        if now_ms.saturating_sub(self.neighbours_ms) >= NEIGHBOURS_MS {
            self.neighbours_ms = now_ms;
            let exits = self.exits.values().map(|exit| exit.previous_hop.ip());
            self.neighbours = self.relays.values().map(|relay| relay.to.ip()).chain(exits).collect();
        }
        self.neighbours.contains(&ip)
    }

    /// The association that gets what comes from this origin over a circuit.
    pub fn client_of(&self, lane: Lane, circuit_id: u32, origin: Destination<'_>) -> Option<(u32, SocketAddr)> {
        self.clients.for_answer(lane, circuit_id, origin.port(), || {
            let mut address = [0; address::MAX_ADDRESS_BYTES];
            let bytes = address::write_socks5(origin, &mut address)?;
            self.sticky.get(&lane)?.asker(address.get(..bytes)?)
        })
    }

    /// The circuit for a destination that an association sends to, chosen now if it has none that is ready.
    pub fn circuit_for(&mut self, lane: Lane, destination: &[u8], association: u32) -> Option<u32> {
        let circuits = &self.circuits;
        let is_ready = |circuit: &Circuit| circuit.ready && circuit.lane == lane && circuit.purpose == Purpose::Data;
        let sticky = self.sticky.entry(lane).or_default();
        match sticky.get(destination, association) {
            Some(id) if circuits.get(&id).is_some_and(is_ready) => Some(id),
            _ => {
                let ready = || circuits.iter().filter(|(_, circuit)| is_ready(circuit));
                let reaches = |circuit: &Circuit| circuit.reaches_ipv6 || !address::is_ipv6(destination);
                let able = ready().any(|(_, circuit)| reaches(circuit));
                let chosen = ready().filter(|(_, circuit)| !able || reaches(circuit)).map(|(id, _)| *id);
                sticky.assign(destination, association, chosen)
            }
        }
    }

    /// Others are told to find us by this circuit, if it is there.
    pub fn announce(&mut self, circuit_id: u32) {
        if self.circuits.contains_key(&circuit_id) {
            self.announced.entry(circuit_id).or_default();
        }
    }

    /// Whether others are told to find us by this circuit.
    pub fn is_announced(&self, circuit_id: u32) -> bool {
        self.announced.contains_key(&circuit_id)
    }

    /// Whether what comes from an origin over a circuit is for the main process: the circuit was announced, and no
    /// client sends to the origin over it.
    pub fn is_stranger(&mut self, circuit_id: u32, origin: Destination<'_>, now_ns: u64) -> Result<bool, DropReason> {
        let Some(strangers) = self.announced.get_mut(&circuit_id) else { return Ok(false) };
        let mut address = [0; address::MAX_ADDRESS_BYTES];
        let known = address::write_socks5(origin, &mut address).and_then(|bytes| address.get(..bytes));
        let lane = self.circuits.get(&circuit_id).map(|circuit| circuit.lane);
        let sticky = lane.and_then(|lane| self.sticky.get(&lane));
        if sticky.zip(known).is_some_and(|(sticky, address)| sticky.circuit_of(address) == Some(circuit_id)) {
            return Ok(false);
        }
        if !strangers.permits(now_ns) {
            return Err(DropReason::StrangersTooFast);
        }
        strangers.take(1, STRANGERS_PER_S, STRANGERS_BURST_NS, now_ns);
        Ok(true)
    }

    /// Let what an association's client sends to a destination go over this circuit, which has to be of its lane.
    pub fn pin(&mut self, association: u32, destination: &[u8], circuit_id: u32) {
        let Some(lane) = self.clients.get(association).map(|association| association.lane) else { return };
        let is_ready =
            self.circuits.get(&circuit_id).is_some_and(|circuit| circuit.lane == lane && circuit.may_carry());
        if is_ready {
            self.sticky.entry(lane).or_default().assign(destination, association, std::iter::once(circuit_id));
        }
    }

    /// Set a circuit, new or changed.
    pub fn set_circuit(&mut self, circuit_id: u32, circuit: Circuit) {
        let end = (circuit.purpose == Purpose::EndToEnd).then_some((circuit.lane, circuit.known_as));
        if let Some(before) = self.circuits.insert(circuit_id, circuit) {
            self.ends.remove(&(before.lane, before.known_as));
        }
        if let Some(end) = end {
            self.ends.insert(end, circuit_id);
        }
    }

    /// The circuit whose other end is known as this to clients of the lane.
    pub fn end(&self, lane: Lane, known_as: u32) -> Option<u32> {
        self.ends.get(&(lane, known_as)).copied()
    }

    /// The same, if the other end can read what we send.
    pub fn linked(&self, lane: Lane, known_as: u32) -> Option<u32> {
        self.end(lane, known_as).filter(|id| self.circuits.get(id).is_some_and(Circuit::is_linked))
    }

    /// Forget a circuit; returns its lane and the destinations that have none now.
    pub fn remove_circuit(&mut self, circuit_id: u32) -> Option<(Lane, Vec<Box<[u8]>>)> {
        let circuit = self.circuits.remove(&circuit_id)?;
        if self.end(circuit.lane, circuit.known_as) == Some(circuit_id) {
            self.ends.remove(&(circuit.lane, circuit.known_as));
        }
        self.announced.remove(&circuit_id);
        self.clients.forget_circuit(circuit_id);
        let sticky = self.sticky.get_mut(&circuit.lane)?;
        Some((circuit.lane, sticky.forget_circuit(circuit_id)))
    }
}
