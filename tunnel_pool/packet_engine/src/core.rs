//! What happens to each datagram: pure decisions on bytes, tables and the time; no I/O.
//!
//! Datagrams that leave go through `gate`, what Python is to hear into `events`, frames for
//! the main process into `stream`. The rules are py-ipv8's (crypto.py, PythonCryptoEndpoint).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ring::hmac;

use crate::address::{self, Destination, NOWHERE};
use crate::cell::{
    self, Header, Kind, Prefix, CREATE_ID, DATA_ID, EXTEND_ID, HTTP_REQUEST_ID, HTTP_RESPONSE_ID, MESSAGE_AT,
    STREAM_ID, TEST_REQUEST_ID,
};
use crate::clients::Lane;
use crate::counters::{Counters, DropReason};
use crate::ends::{address_of_end, number_of_end, END_PORT, SECRET_BYTES};
use crate::gate::Gate;
use crate::handshakes::Handshakes;
use crate::keys::{Direction, SessionKeys, COUNTER_BYTES};
use crate::limits::Class;
use crate::outbox::{Egress, Via, MAX_DATAGRAM_BYTES};
use crate::policy::{is_answer, is_question, ExitPolicy};
use crate::probes::Probes;
use crate::routes::{Circuit, Purpose, Routes};
use crate::rules::ExitRules;
use crate::shaper::Cost;
use crate::stream::{self, Frame};
use crate::streams::dials::AllDials;
use crate::streams::quic::{random_bytes, LinkId, Quic};
use crate::tcp_first::TcpFirst;
use crate::utp::{self, could_be_utp};

/// Packets of one round that wait for Python; more are dropped and counted.
const MAX_PACKETS_BYTES: usize = 1 << 20;
/// Frames that wait for the data stream; more are dropped and counted (rpc/streams.py, PENDING_BYTES).
pub const MAX_STREAM_BYTES: usize = 1 << 20;

/// Messages a second that Python gets of one circuit that ends here; most are speed tests.
const MESSAGES_PER_S: u64 = 1000;
const MESSAGES_BURST_NS: u64 = 1_000_000_000;

/// Streams that the other end of a circuit may have at a time.
const MAX_STREAMS: u32 = 256;

const SOCKS5_UDP_START: [u8; 3] = [0, 0, 0];

/// An event for Python; `Shared` queues it as a `Notice`.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A message for py-ipv8: from the socket as it came, or a decrypted cell.
    Packet {
        /// The address of the sender.
        from: SocketAddr,
        /// The whole datagram; of a decrypted cell, the header followed by the message.
        bytes: Vec<u8>,
    },
    /// A circuit is gone; these destinations (SOCKS5 encoding) had it.
    Orphans {
        /// The lane of the circuit.
        lane: Lane,
        /// The addresses, each as SOCKS5 encodes it.
        destinations: Vec<Box<[u8]>>,
    },
    /// A stream's destination is a name; the answer is `Command::Resolved`.
    Resolve {
        /// The stream's number in `Service`, for the answer.
        number: u32,
        /// The name that the client asked for; bytes that are no UTF-8 are replaced.
        name: String,
        /// The stream's circuit, which ends here.
        circuit_id: u32,
    },
    /// The other end of a circuit has opened a stream, which waits for a client of ours to connect to it: to what its id
    /// stands for. One who has called says which torrent is wanted.
    Guest {
        /// The circuit of ours.
        circuit_id: u32,
        /// The number of the address that a client has to connect to (ends.rs).
        known_as: u32,
        /// The torrent that a caller asks for; None on an end-to-end circuit, which is of one torrent.
        infohash: Option<[u8; 20]>,
    },
    /// The answer to `Command::TellExitPort`.
    ExitPort {
        /// The circuit, which ends here.
        circuit_id: u32,
        /// The port of its IPv4 socket; 0 if it has none.
        port: u16,
    },
    /// Whether a circuit of ours carries streams has changed.
    Streams {
        /// The circuit of ours.
        circuit_id: u32,
    },
}

/// The settings that Python may replace while the engine runs (`Command::Configure`).
#[derive(Clone)]
pub struct Settings {
    /// The prefix of the tunnels' overlay, which every cell begins with.
    pub prefix: Prefix,
    /// Other overlays that listen on this socket; None: take every prefix.
    pub other_prefixes: Option<Vec<Prefix>>,
    /// The most cells of a circuit that may have the relay_early flag (py-ipv8 community.py, max_relay_early). With 0,
    /// every cell is dropped that is not to be relayed.
    pub max_relay_early: u32,
    /// Message ids that may travel in the clear.
    pub no_crypto: Vec<u8>,
    /// The network's rules for exits, as this node applies them.
    pub policy: ExitPolicy,
    /// Of which it is derived which addresses lead to this child (ends.rs).
    pub end_secret: [u8; SECRET_BYTES],
}

/// The tables and decisions of one child. `Worker` owns it, passes datagrams and the time to it, and sends the contents
/// of its outbox.
pub struct Core {
    /// The settings in force.
    pub settings: Settings,
    /// Circuits of ours, relays, exits and associations.
    pub routes: Routes,
    /// The counters of drops, which Python reads as well (`Shared::counters`).
    pub counters: Arc<Counters>,
    /// The outbox, and the limits in front of it.
    pub gate: Gate,
    /// The events of this round, oldest first; `take_events` empties the list.
    pub events: Vec<Event>,
    packets_bytes: usize,
    /// Frames for the main process, as rpc/data.py describes them; None without a data stream.
    pub stream: Option<Vec<u8>>,
    /// Exits that need their sockets before the outbox is sent.
    pub to_enable: Vec<u32>,
    /// Exits whose circuits strangers may connect to from now on, if their clients take that.
    pub to_open_door: Vec<u32>,
    /// What guests who wait are known as, and the lanes of their circuits (streams/guests.rs).
    pub guests: HashMap<u32, Lane>,
    /// What those are known as who have called, and whom a client has connected to.
    pub met: HashSet<u32>,
    /// What guests are known as is made by this.
    pub guest_key: hmac::Key,
    /// Decides which connections by uTP are refused, for all circuits that end here.
    pub tcp_first: TcpFirst,
    /// Milliseconds since the epoch.
    pub now_ms: u64,
    /// The monotonic time of this round, set by `Worker`.
    pub now: Instant,
    /// The QUIC connections that carry streams, at most one for each circuit.
    pub quic: Quic,
    /// The operator's rules for exits.
    pub rules: ExitRules,
    /// The connections of all exits' streams.
    pub all_dials: AllDials,
    /// CREATE and EXTEND.
    pub handshakes: Handshakes,
    /// CREATED, by the same limits.
    pub answers: Handshakes,
}

/// What is put around a payload to make it a data message.
struct Envelope<'a> {
    destination: Destination<'a>,
    origin: Destination<'a>,
}

/// Whether a data message's cell fits one packet. Only uTP is held to that (probes.rs); what else is too large travels as
/// fragments.
fn fits(message_bytes: usize, largest: usize, probes: &Probes, payload: &[u8]) -> Result<(), DropReason> {
    let is_dropped = message_bytes > largest && could_be_utp(payload) && probes.drops(payload);
    (!is_dropped).then_some(()).ok_or(DropReason::DatagramTooLarge)
}

/// The layers around a message, from the outermost in.
fn seal_all<'a>(
    slot: &mut [u8],
    mut message: Range<usize>,
    layers: impl DoubleEndedIterator<Item = (&'a SessionKeys, Direction)>,
) -> Result<Range<usize>, DropReason> {
    for (keys, direction) in layers.rev() {
        message = keys.seal(direction, slot, message).ok_or(DropReason::CellTooLarge)?;
    }
    Ok(message)
}

/// Open the layers of a cell of a circuit of ours, and return where its message lies.
fn open_layers(circuit: &Circuit, datagram: &mut [u8]) -> Result<Range<usize>, DropReason> {
    if circuit.layers.is_empty() {
        return Err(DropReason::CellNotDecrypted);
    }
    let mut message = MESSAGE_AT..datagram.len();
    for (keys, direction) in circuit_layers(circuit) {
        message = keys.open(direction.opposite(), datagram, message)?;
    }
    Ok(message)
}

/// Put the header in front of a message that starts at least MESSAGE_AT into the slot.
pub(crate) fn finish(
    slot: &mut [u8],
    prefix: &Prefix,
    header: Header,
    message: &Range<usize>,
) -> Result<Range<usize>, DropReason> {
    let start = message.start.checked_sub(MESSAGE_AT).ok_or(DropReason::CellTooLarge)?;
    let place = slot.get_mut(start..message.end).ok_or(DropReason::CellTooLarge)?;
    cell::write_header(place, prefix, header).ok_or(DropReason::CellTooLarge)?;
    if message.end - start > MAX_DATAGRAM_BYTES {
        return Err(DropReason::CellTooLarge);
    }
    Ok(start..message.end)
}

/// Copy a message to `at` in the slot.
fn copy(slot: &mut [u8], at: usize, message: &[u8]) -> Result<Range<usize>, DropReason> {
    let range = at..at + message.len();
    slot.get_mut(range.clone()).ok_or(DropReason::CellTooLarge)?.copy_from_slice(message);
    Ok(range)
}

/// Write a data message to `at` in the slot.
fn place_data(slot: &mut [u8], at: usize, around: &Envelope<'_>, payload: &[u8]) -> Result<Range<usize>, DropReason> {
    *slot.get_mut(at).ok_or(DropReason::CellTooLarge)? = DATA_ID;
    let mut end = at + 1;
    for part in [around.destination, around.origin] {
        let room = slot.get_mut(end..).ok_or(DropReason::CellTooLarge)?;
        end += address::write_packed(part, room).ok_or(DropReason::CellTooLarge)?;
    }
    Ok(at..copy(slot, end, payload)?.end)
}

/// Make of a payload in a data message what the client of an association gets (RFC 1928 section 7);
/// the header is shorter than what stands there.
fn put_socks5(datagram: &mut [u8], payload: Range<usize>, address: &[u8]) -> Result<Range<usize>, DropReason> {
    let header_bytes = SOCKS5_UDP_START.len() + address.len();
    let start = payload.start.checked_sub(header_bytes).ok_or(DropReason::CellDataMalformed)?;
    copy(datagram, start, &SOCKS5_UDP_START)?;
    copy(datagram, start + SOCKS5_UDP_START.len(), address)?;
    Ok(start..payload.end)
}

fn check_relay_early(settings: &Settings, header: Header, message_id: u8) -> Result<(), DropReason> {
    if (message_id == EXTEND_ID && !header.relay_early) || settings.max_relay_early == 0 {
        return Err(DropReason::CellRelayEarlyMissing);
    }
    Ok(())
}

fn circuit_layers(circuit: &Circuit) -> impl DoubleEndedIterator<Item = (&SessionKeys, Direction)> {
    let hops = circuit.layers.iter().map(|keys| (keys.as_ref(), Direction::Forward));
    let end = circuit.end_to_end.iter().map(|(keys, direction)| (keys.as_ref(), *direction));
    hops.chain(end)
}

/// Where a message lies so that its layers and the header fit in front of it.
pub(crate) fn headroom(layers: usize) -> usize {
    MESSAGE_AT + layers * COUNTER_BYTES
}

impl Core {
    /// Creates a core without routes, limits or a data stream. `guest_key` is random, so that guests have other numbers
    /// after a restart.
    pub fn new(settings: Settings, counters: Arc<Counters>) -> Self {
        Self {
            settings,
            routes: Routes::default(),
            gate: Gate::new(Arc::clone(&counters)),
            counters,
            events: Vec::new(),
            packets_bytes: 0,
            stream: None,
            to_enable: Vec::new(),
            to_open_door: Vec::new(),
            guests: HashMap::new(),
            met: HashSet::new(),
            guest_key: hmac::Key::new(hmac::HMAC_SHA256, &random_bytes()),
            tcp_first: TcpFirst::default(),
            now_ms: 0,
            now: Instant::now(),
            quic: Quic::new(MAX_STREAMS),
            rules: ExitRules::default(),
            all_dials: AllDials::default(),
            handshakes: Handshakes::default(),
            answers: Handshakes::default(),
        }
    }

    fn counted(&self, outcome: Result<(), DropReason>) {
        if let Err(reason) = outcome {
            self.counters.count(reason);
        }
    }

    /// Removes and returns all events, oldest first, and resets the count of waiting packet bytes.
    pub fn take_events(&mut self) -> std::vec::Drain<'_, Event> {
        self.packets_bytes = 0;
        self.events.drain(..)
    }

    fn packet_for_python(&mut self, from: SocketAddr, bytes: &[u8]) {
        if self.packets_bytes + bytes.len() > MAX_PACKETS_BYTES {
            self.counters.count(DropReason::PythonQueueFull);
        } else {
            self.packets_bytes += bytes.len();
            self.events.push(Event::Packet { from, bytes: bytes.to_vec() });
        }
    }

    // The tunnel socket

    /// A datagram from the tunnel socket. It is decrypted where it lies, at `place` of the inbox,
    /// and what goes on from here is sent from there.
    pub fn tunnel_received(&mut self, from: SocketAddr, datagram: &mut [u8], place: usize) {
        match cell::kind(&self.settings.prefix, datagram) {
            Kind::Malformed => self.counters.count(DropReason::CellMalformed),
            Kind::Other => {
                let listens = match &self.settings.other_prefixes {
                    Some(others) => {
                        datagram.starts_with(&self.settings.prefix)
                            || others.iter().any(|prefix| datagram.starts_with(prefix))
                    }
                    None => true,
                };
                if listens {
                    self.packet_for_python(from, datagram);
                } else {
                    self.counters.count(DropReason::PacketUnknownPrefix);
                }
            }
            Kind::Cell(header) => {
                let outcome = self.cell_received(from, header, datagram, place);
                self.counted(outcome);
            }
        }
    }

    fn cell_received(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        place: usize,
    ) -> Result<(), DropReason> {
        let id = header.circuit_id;
        if self.routes.relays.contains_key(&id) {
            self.relay(from, header, datagram, place)
        } else if header.plaintext {
            self.plain_cell_received(from, header, datagram)
        } else if self.routes.exits.contains_key(&id) {
            self.exit_cell_received(from, header, datagram, place)
        } else if self.routes.circuits.contains_key(&id) {
            self.circuit_cell_received(from, header, datagram, place)
        } else {
            Err(DropReason::CellNotDecrypted)
        }
    }

    fn plain_cell_received(&mut self, from: SocketAddr, header: Header, datagram: &[u8]) -> Result<(), DropReason> {
        let id = datagram.get(MESSAGE_AT).ok_or(DropReason::CellMalformed)?;
        check_relay_early(&self.settings, header, *id)?;
        if !self.settings.no_crypto.contains(id) {
            return Err(DropReason::CellNotEncrypted);
        }
        // A cell that is not CREATE is CREATED. One that we wait for ourselves is not counted; any
        // other should answer another node's EXTEND, and has the same limits as CREATE.
        let circuit = self.routes.circuits.get(&header.circuit_id);
        let is_awaited = *id != CREATE_ID && circuit.is_some_and(|circuit| circuit.layers.is_empty());
        if !is_awaited {
            let is_neighbour = self.routes.has_neighbour(from.ip(), self.now_ms);
            let handshakes = if *id == CREATE_ID { &mut self.handshakes } else { &mut self.answers };
            handshakes.admit(from.ip(), is_neighbour, self.gate.now_ns)?;
        }
        self.packet_for_python(from, datagram);
        Ok(())
    }

    /// Give py-ipv8 a cell whose message was decrypted to `message`.
    fn cell_for_python(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        message: &Range<usize>,
    ) -> Result<(), DropReason> {
        let whole = finish(datagram, &self.settings.prefix, header, message)?;
        let bytes = datagram.get(whole).ok_or(DropReason::CellMalformed)?;
        self.packet_for_python(from, bytes);
        Ok(())
    }

    fn relay(&mut self, from: SocketAddr, header: Header, datagram: &mut [u8], place: usize) -> Result<(), DropReason> {
        let relays = &self.routes.relays;
        let next = relays.get(&header.circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let this = relays.get(&next.next_id);
        if let Some(this) = this {
            this.stats.received(datagram.len());
        }
        if header.plaintext {
            return Err(DropReason::CellNotEncrypted);
        }
        if header.relay_early && next.relay_early_count.get() >= self.settings.max_relay_early {
            return Err(DropReason::CellRelayEarlyTooMany);
        }
        let onwards =
            Header { circuit_id: next.next_id, plaintext: false, relay_early: header.relay_early && !next.rendezvous };
        let received_bytes = datagram.len();
        let sealed = MESSAGE_AT..received_bytes;
        let egress = Egress::tunnel(next.to, next.next_id);
        let sent_bytes = if next.rendezvous || next.direction == Direction::Forward {
            let mut message = next.keys.open(Direction::Forward, datagram, sealed)?;
            if next.rendezvous {
                let back = &this.ok_or(DropReason::UnknownCircuit)?.keys;
                message = back.seal(Direction::Backward, datagram, message).ok_or(DropReason::CellTooLarge)?;
            }
            let packet = finish(datagram, &self.settings.prefix, onwards, &message)?;
            let cost = Cost::inwards(Class::Relayed, next.next_id, packet.len(), received_bytes);
            let sent_bytes = packet.len();
            self.gate.send_received(cost, egress, datagram, packet, place);
            sent_bytes
        } else {
            // A layer more, for which there is no room where the cell lies.
            let slot = self.gate.outbox.slot();
            let text = copy(slot, headroom(1), datagram.get(sealed).ok_or(DropReason::CellMalformed)?)?;
            let message = next.keys.seal(Direction::Backward, slot, text).ok_or(DropReason::CellTooLarge)?;
            let packet = finish(slot, &self.settings.prefix, onwards, &message)?;
            let sent_bytes = packet.len();
            let cost = Cost::inwards(Class::Relayed, next.next_id, sent_bytes, received_bytes);
            self.gate.send(cost, egress, packet);
            sent_bytes
        };
        // Only a cell that we could open, or that comes from the neighbour's address, keeps the
        // circuit alive.
        let is_opened = next.rendezvous || next.direction == Direction::Forward;
        if let Some(this) = this.filter(|this| is_opened || this.to.ip() == from.ip()) {
            this.stats.active(self.now_ms);
        }
        next.stats.sent(sent_bytes);
        next.relay_early_count.set(next.relay_early_count.get().saturating_add(1));
        Ok(())
    }

    // Our circuits

    /// Open a cell of a circuit of ours, and hand on what is in it.
    fn circuit_cell_received(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        place: usize,
    ) -> Result<(), DropReason> {
        let circuit = self.routes.circuits.get(&header.circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let message = open_layers(circuit, datagram)?;
        let id = *datagram.get(message.start).ok_or(DropReason::CellNotDecrypted)?;
        check_relay_early(&self.settings, header, id)?;
        circuit.stats.active(self.now_ms);
        circuit.stats.received(datagram.len());
        if id != DATA_ID && id != STREAM_ID {
            return self.cell_for_python(from, header, datagram, &message);
        }
        if from != circuit.first_hop {
            return Err(DropReason::CircuitForeignSource);
        }
        if !circuit.may_carry() {
            return Err(DropReason::CircuitNotReady);
        }
        if id == STREAM_ID {
            self.stream_message_received(header.circuit_id, datagram, message)
        } else {
            self.data_message_received(from, header, datagram, message, place)
        }
    }

    /// Give a message of a stream to the streams of our circuit.
    fn stream_message_received(
        &mut self,
        circuit_id: u32,
        datagram: &[u8],
        message: Range<usize>,
    ) -> Result<(), DropReason> {
        let circuit = self.routes.circuits.get(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let largest_message = circuit.serves_streams().then_some(circuit.largest_message);
        self.gate.pay(Cost::inwards(Class::Own, circuit_id, 0, datagram.len()))?;
        let text = datagram.get(message).ok_or(DropReason::CellNotDecrypted)?;
        let is_known = self.quic.received(LinkId::ours(circuit_id), text, largest_message, self.now);
        is_known.then_some(()).ok_or(DropReason::StreamMalformed)
    }

    /// Give a data message of our circuit to whom it is for: a client of this process, py-ipv8, or the main process.
    fn data_message_received(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        message: Range<usize>,
        place: usize,
    ) -> Result<(), DropReason> {
        let circuit = self.routes.circuits.get(&header.circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let received_bytes = datagram.len();
        let text = datagram.get(message.clone()).ok_or(DropReason::CellNotDecrypted)?;
        let data = cell::parse_data(text).map_err(|_| DropReason::CellDataMalformed)?;
        let payload = text.get(data.payload.clone()).ok_or(DropReason::CellDataMalformed)?;
        let origin = match circuit.purpose {
            Purpose::EndToEnd => address_of_end(circuit.known_as),
            // An exit that gives itself out for the other end of a circuit of ours.
            _ if number_of_end(data.origin).is_some() => return Err(DropReason::CircuitForeignSource),
            _ => data.origin,
        };
        let purpose = circuit.purpose;
        let client = self.routes.client_of(circuit.lane, header.circuit_id, origin);
        let is_stranger = self.routes.is_stranger(header.circuit_id, origin, self.gate.now_ns)?;
        let client = client.filter(|_| !is_stranger);
        // py-ipv8 gets messages of its own overlay, what comes over circuits that carry no client's
        // datagrams, and everything when nobody else wants it.
        let is_for_python = match purpose {
            Purpose::Data => payload.starts_with(&self.settings.prefix),
            Purpose::EndToEnd => false,
            Purpose::Other => true,
        };
        if is_for_python || (client.is_none() && self.stream.is_none()) {
            return self.cell_for_python(from, header, datagram, &message);
        }
        let Some((association, client)) = client else {
            return self.frame(header.circuit_id, origin, payload);
        };
        let mut address = [0; address::MAX_ADDRESS_BYTES];
        let address_bytes = address::write_socks5(origin, &mut address).ok_or(DropReason::CellDataMalformed)?;
        let address = address.get(..address_bytes).ok_or(DropReason::CellDataMalformed)?;
        let packet = put_socks5(datagram, message.start + data.payload.start..message.end, address)?;
        let cost = Cost::inwards(Class::Own, header.circuit_id, 0, received_bytes);
        let egress = Egress { via: Via::Client(association), to: client, circuit_id: 0 };
        self.gate.send_received(cost, egress, datagram, packet, place);
        Ok(())
    }

    /// The address that stands for the other end of a circuit.
    fn other_end(&self, circuit_id: u32) -> Destination<'static> {
        address_of_end(self.routes.circuits.get(&circuit_id).map_or(0, |circuit| circuit.known_as))
    }

    /// Queue a frame for the main process.
    fn frame(&mut self, circuit_id: u32, origin: Destination<'_>, payload: &[u8]) -> Result<(), DropReason> {
        let stream = self.stream.as_mut().ok_or(DropReason::NoCircuit)?;
        let mut address = [0; address::MAX_ADDRESS_BYTES];
        let address_bytes = address::write_socks5(origin, &mut address).ok_or(DropReason::CellDataMalformed)?;
        let address = address.get(..address_bytes).ok_or(DropReason::CellDataMalformed)?;
        if stream.len() + payload.len() > MAX_STREAM_BYTES {
            return Err(DropReason::DataOutFull);
        }
        stream::append(stream, &Frame { circuit_id, address, payload }).ok_or(DropReason::CellTooLarge)
    }

    /// A datagram of an association's client: RSV (2), FRAG, address, payload.
    pub fn client_received(&mut self, association_id: u32, from: SocketAddr, datagram: &[u8]) {
        let outcome = self.carry(association_id, from, datagram);
        self.counted(outcome);
    }

    fn carry(&mut self, association_id: u32, from: SocketAddr, datagram: &[u8]) -> Result<(), DropReason> {
        let association = self.routes.clients.get(association_id).ok_or(DropReason::Socks5ForeignSource)?;
        let clients = association.lane;
        if association.client != from {
            return Err(DropReason::Socks5ForeignSource);
        }
        let [_, _, 0, rest @ ..] = datagram else { return Err(DropReason::Socks5Malformed) };
        let (destination, address_bytes) = address::parse_socks5(rest).map_err(|_| DropReason::Socks5Malformed)?;
        let (key, payload) = rest.split_at_checked(address_bytes).ok_or(DropReason::Socks5Malformed)?;
        if let Some(end) = number_of_end(destination) {
            if let Some(refusal) = self.refusal_of_utp(clients, end, payload) {
                return self.answer_client(association_id, from, key, &refusal);
            }
            // Never to an exit: the address means nothing there.
            let id = self.routes.linked(clients, end).ok_or(DropReason::NoCircuit)?;
            self.routes.clients.asked(id, END_PORT, association_id);
            return self.send_data(id, NOWHERE, payload);
        }
        let circuit_id = self.routes.circuit_for(clients, key, association_id).ok_or(DropReason::NoCircuit)?;
        if let Destination::Name(_, port) = destination {
            self.routes.clients.asked(circuit_id, port, association_id);
        }
        self.send_data(circuit_id, destination, payload)
    }

    /// Send a client of this process what comes from nobody else.
    fn answer_client(
        &mut self,
        association_id: u32,
        client: SocketAddr,
        origin: &[u8],
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let slot = self.gate.outbox.slot();
        let placed = copy(slot, SOCKS5_UDP_START.len() + origin.len(), payload)?;
        let packet = put_socks5(slot, placed, origin)?;
        let egress = Egress { via: Via::Client(association_id), to: client, circuit_id: 0 };
        self.gate.send(Cost::inwards(Class::Own, 0, 0, 0), egress, packet);
        Ok(())
    }

    /// A datagram of the data stream, for a circuit of ours.
    pub fn frame_received(&mut self, circuit_id: u32, address: &[u8], payload: &[u8]) {
        let outcome = match address::parse_socks5(address) {
            Ok((destination, bytes)) if bytes == address.len() => {
                let lane = self.routes.circuits.get(&circuit_id).map(|circuit| circuit.lane);
                let refusal = lane.and_then(|lane| self.refusal_of_utp(lane, circuit_id, payload));
                let sent = match refusal {
                    Some(refusal) => self.frame(circuit_id, self.other_end(circuit_id), &refusal),
                    None => self.send_data(circuit_id, destination, payload),
                };
                match sent {
                    Err(DropReason::UnknownCircuit) => Err(DropReason::DataInUnknownCircuit),
                    outcome => outcome,
                }
            }
            _ => Err(DropReason::DataInMalformed),
        };
        self.counted(outcome);
    }

    fn send_data(&mut self, circuit_id: u32, destination: Destination<'_>, payload: &[u8]) -> Result<(), DropReason> {
        let circuit = self.routes.circuits.get(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        if !circuit.may_carry() {
            return Err(DropReason::CircuitNotReady);
        }
        let around = Envelope { destination, origin: NOWHERE };
        let slot = self.gate.outbox.slot();
        let message = place_data(slot, headroom(circuit_layers(circuit).count()), &around, payload)?;
        fits(message.len(), circuit.largest_message, &circuit.probes, payload)?;
        let (to, packet) = seal_for_circuit(slot, &self.settings, circuit_id, circuit, message, false)?;
        let cost = Cost::outwards(Class::Own, circuit_id, packet.len(), 0);
        self.gate.send(cost, Egress::tunnel(to, circuit_id), packet);
        Ok(())
    }

    // Circuits that end here

    fn exit_cell_received(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        place: usize,
    ) -> Result<(), DropReason> {
        let exit = self.routes.exits.get(&header.circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let received_bytes = datagram.len();
        let message = exit.keys.open(Direction::Forward, datagram, MESSAGE_AT..received_bytes)?;
        let text = datagram.get(message.clone()).ok_or(DropReason::CellNotDecrypted)?;
        let id = *text.first().ok_or(DropReason::CellNotDecrypted)?;
        check_relay_early(&self.settings, header, id)?;
        if id == STREAM_ID {
            let largest_message = self.offers_streams().then_some(exit.largest_message);
            self.gate.pay(Cost::inwards(Class::Exited, header.circuit_id, text.len(), received_bytes))?;
            exit.stats.active(self.now_ms);
            let is_known = self.quic.received(LinkId::exit(header.circuit_id), text, largest_message, self.now);
            return is_known.then_some(()).ok_or(DropReason::StreamMalformed);
        }
        let data = if id == DATA_ID {
            cell::parse_data(text).map_err(|_| DropReason::CellDataMalformed).map(Some)?
        } else {
            None
        };
        let Some((data, to)) = data.and_then(|data| match data.destination {
            Destination::Ip(to) => Some((data, to)),
            Destination::Name(..) => None,
        }) else {
            return self.exit_cell_for_python(from, header, datagram, &message, id);
        };
        let payload = text.get(data.payload.clone()).ok_or(DropReason::CellDataMalformed)?;
        if !exit.enabled && from.ip() != exit.previous_hop.ip() {
            return Err(DropReason::ExitForeignSource);
        }
        let to = self.let_out(header.circuit_id, to, payload)?;
        let cost = Cost::inwards(Class::Exited, header.circuit_id, payload.len(), datagram.len());
        let start = message.start + data.payload.start;
        let bytes = start..start + payload.len();
        self.gate.send_received(cost, Egress::exit(to, header.circuit_id), datagram, bytes, place);
        Ok(())
    }

    /// A message, or a datagram to a name, which Python resolves and comes back with to `exit_send`.
    fn exit_cell_for_python(
        &mut self,
        from: SocketAddr,
        header: Header,
        datagram: &mut [u8],
        message: &Range<usize>,
        id: u8,
    ) -> Result<(), DropReason> {
        let exit = self.routes.exits.get_mut(&header.circuit_id).ok_or(DropReason::UnknownCircuit)?;
        // Python answers to where the cell came from: nobody is to be flooded through us.
        if from.ip() != exit.previous_hop.ip() {
            return Err(DropReason::ExitForeignSource);
        }
        if !exit.messages.permits(self.gate.now_ns) {
            return Err(DropReason::ExitTooManyMessages);
        }
        exit.messages.take(1, MESSAGES_PER_S, MESSAGES_BURST_NS, self.gate.now_ns);
        match id {
            EXTEND_ID => self.handshakes.admit(from.ip(), true, self.gate.now_ns)?,
            DATA_ID | TEST_REQUEST_ID | HTTP_REQUEST_ID => {
                self.gate.pay(Cost::inwards(Class::Exited, header.circuit_id, 0, datagram.len()))?;
            }
            _ => {}
        }
        self.cell_for_python(from, header, datagram, message)
    }

    /// Let a datagram out, as Python asks for once a name is resolved.
    pub fn exit_send(&mut self, circuit_id: u32, to: SocketAddr, payload: &[u8]) {
        let outcome = self.let_out(circuit_id, to, payload).and_then(|to| {
            let cost = Cost::inwards(Class::Exited, circuit_id, payload.len(), 0);
            let written = copy(self.gate.outbox.slot(), 0, payload)?;
            self.gate.send(cost, Egress::exit(to, circuit_id), written);
            Ok(())
        });
        self.counted(outcome);
    }

    /// Whether a datagram may leave, and where to.
    fn let_out(&mut self, circuit_id: u32, to: SocketAddr, payload: &[u8]) -> Result<SocketAddr, DropReason> {
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let policy = &self.settings.policy;
        if !policy.offers() {
            return Err(DropReason::ExitNotOffered);
        }
        policy.destination(to)?;
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        self.rules.destination(to)?;
        policy.content(payload, &self.settings.prefix, self.rules.protocols_or(policy.peer_flags))?;
        exit.contacts.may_send(&self.rules, to, self.gate.now_ns)?;
        let was_announced = exit.strangers.is_announced();
        exit.strangers.sent(to.ip(), payload, self.gate.now_ns);
        if exit.strangers.is_announced() != was_announced {
            self.to_open_door.push(circuit_id);
        }
        if is_question(payload, &self.settings.prefix) {
            exit.strangers.asks_introduction_points();
        }
        if !exit.enabled {
            exit.enabled = true;
            self.to_enable.push(circuit_id);
        }
        exit.stats.sent(payload.len());
        exit.stats.active(self.now_ms);
        Ok(to)
    }

    /// Have the sockets of a circuit that ends here opened before the next datagram leaves.
    pub fn enable_exit(&mut self, circuit_id: u32) {
        if let Some(exit) = self.routes.exits.get_mut(&circuit_id).filter(|exit| !exit.enabled) {
            exit.enabled = true;
            self.to_enable.push(circuit_id);
        }
    }

    /// The circuit has told a tracker where it is found, by a request that Python made.
    pub fn exit_announced(&mut self, circuit_id: u32) {
        if let Some(exit) = self.routes.exits.get_mut(&circuit_id) {
            exit.strangers.announced();
            self.to_open_door.push(circuit_id);
        }
    }

    /// A datagram from outside to an exit's socket.
    pub fn exit_received(&mut self, circuit_id: u32, from: SocketAddr, payload: &[u8]) {
        let outcome = self.carry_back(circuit_id, from, payload);
        self.counted(outcome);
    }

    fn carry_back(&mut self, circuit_id: u32, from: SocketAddr, payload: &[u8]) -> Result<(), DropReason> {
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        exit.stats.received(payload.len());
        let policy = &self.settings.policy;
        policy.content(payload, &self.settings.prefix, self.rules.protocols_or(policy.peer_flags))?;
        let is_answer = is_answer(payload, &self.settings.prefix) && exit.strangers.let_answer_in(self.gate.now_ns);
        if !is_answer && exit.strangers.let_in(&self.rules, from.ip().to_canonical(), self.gate.now_ns)? {
            self.counters.let_in(payload.len());
        }
        let is_callable = exit.has_door && exit.callers.permits(self.gate.now_ns) && from.is_ipv4();
        if is_callable
            && utp::is_libtorrents_syn(payload)
            && self.may_answer(from.ip()).is_ok()
            && self.rules.destination(from).is_ok()
            && self.tcp_first.refuses(from.ip(), self.gate.now_ns)
        {
            return self.refuse_utp(circuit_id, from, payload);
        }
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        exit.contacts.answered(from, self.gate.now_ns);
        let around = Envelope { destination: NOWHERE, origin: Destination::Ip(from) };
        let slot = self.gate.outbox.slot();
        let message = place_data(slot, headroom(1), &around, payload)?;
        fits(message.len(), exit.largest_message, &exit.probes, payload)?;
        let layer = exit.keys.seal(Direction::Backward, slot, message).ok_or(DropReason::CellTooLarge)?;
        let header = Header { circuit_id, plaintext: false, relay_early: false };
        let packet = finish(slot, &self.settings.prefix, header, &layer)?;
        let to = exit.previous_hop;
        let cost = Cost::outwards(Class::Exited, circuit_id, packet.len(), payload.len());
        self.gate.send(cost, Egress::tunnel(to, circuit_id), packet);
        Ok(())
    }

    /// Answer one who begins a connection by uTP: he is to come by TCP.
    fn refuse_utp(&mut self, circuit_id: u32, to: SocketAddr, syn: &[u8]) -> Result<(), DropReason> {
        let refusal = utp::refusal(syn).ok_or(DropReason::ExitContentRefused)?;
        let written = copy(self.gate.outbox.slot(), 0, &refusal)?;
        let cost = Cost::inwards(Class::Exited, circuit_id, refusal.len(), 0);
        self.gate.send(cost, Egress::exit(to, circuit_id), written);
        Ok(())
    }

    // What Python sends

    /// A packet as it is.
    pub fn send_packet(&mut self, to: SocketAddr, packet: &[u8]) {
        let outcome = sendable(to).and_then(|()| copy(self.gate.outbox.slot(), 0, packet));
        let outcome = outcome.map(|written| self.gate.outbox.push(Via::Tunnel, to, 0, written));
        self.counted(outcome);
    }

    /// Send a message in a cell, encrypted for its circuit, relay or exit. Without keys, the cell
    /// is dropped, unless it is `plaintext`.
    pub fn send_cell(&mut self, to: SocketAddr, circuit_id: u32, plaintext: bool, message: &[u8]) {
        let outcome = sendable(to).and_then(|()| self.send_cell_checked(to, circuit_id, plaintext, message));
        self.counted(outcome);
    }

    fn send_cell_checked(
        &mut self,
        to: SocketAddr,
        id: u32,
        plaintext: bool,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let routes = &self.routes;
        let slot = self.gate.outbox.slot();
        let header = Header { circuit_id: id, plaintext, relay_early: false };
        let packet = if let Some(circuit) = routes.circuits.get(&id) {
            let layers = if plaintext { 0 } else { circuit_layers(circuit).count() };
            if layers == 0 && !plaintext {
                return Err(DropReason::CircuitNotReady);
            }
            let message = copy(slot, headroom(layers), message)?;
            seal_for_circuit(slot, &self.settings, id, circuit, message, plaintext)?.1
        } else if plaintext {
            let message = copy(slot, MESSAGE_AT, message)?;
            finish(slot, &self.settings.prefix, header, &message)?
        } else {
            let (keys, direction) = if let Some(exit) = routes.exits.get(&id) {
                (&exit.keys, Direction::Backward)
            } else {
                let relay = routes.relays.get(&id).ok_or(DropReason::UnknownCircuit)?;
                let other = routes.relays.get(&relay.next_id);
                match other {
                    _ if relay.rendezvous => (&relay.keys, Direction::Backward),
                    Some(other) => (&other.keys, other.direction),
                    None => return Err(DropReason::UnknownCircuit),
                }
            };
            let message = copy(slot, headroom(1), message)?;
            let layer = keys.seal(direction, slot, message).ok_or(DropReason::CellTooLarge)?;
            finish(slot, &self.settings.prefix, header, &layer)?
        };
        if let (Some(relay), false) = (routes.relays.get(&id), routes.circuits.contains_key(&id)) {
            relay.stats.sent(packet.len());
        }
        if routes.exits.contains_key(&id) {
            // Answers to speed tests and HTTP requests are as large as datagrams, and as many.
            let over_tcp = if message.first() == Some(&HTTP_RESPONSE_ID) { message.len() } else { 0 };
            let cost = Cost::outwards(Class::Exited, id, packet.len(), over_tcp);
            self.gate.send(cost, Egress::tunnel(to, id), packet);
        } else {
            self.gate.outbox.push(Via::Tunnel, to, id, packet);
        }
        Ok(())
    }
}

/// Nobody listens on port 0; the kernel would say so for a whole train.
fn sendable(to: SocketAddr) -> Result<(), DropReason> {
    (to.port() != 0).then_some(()).ok_or(DropReason::UdpSendNoAddress)
}

/// Encrypt for a circuit of ours and count it; returns its first hop and the packet in the slot.
pub(crate) fn seal_for_circuit(
    slot: &mut [u8],
    settings: &Settings,
    circuit_id: u32,
    circuit: &Circuit,
    message: Range<usize>,
    plaintext: bool,
) -> Result<(SocketAddr, Range<usize>), DropReason> {
    let id = slot.get(message.start).copied();
    let early = circuit.relay_early_count.get();
    let relay_early = id == Some(EXTEND_ID) || early < settings.max_relay_early;
    if relay_early {
        circuit.relay_early_count.set(early.saturating_add(1));
    }
    let sealed = if plaintext { message } else { seal_all(slot, message, circuit_layers(circuit))? };
    let header = Header { circuit_id, plaintext, relay_early };
    let packet = finish(slot, &settings.prefix, header, &sealed)?;
    circuit.stats.sent(packet.len());
    Ok((circuit.first_hop, packet))
}
