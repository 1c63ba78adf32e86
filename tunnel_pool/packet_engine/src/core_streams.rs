//! What `Core` does for streams: which circuits carry them, what leaves in cells, and what an exit allows.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use ring::hmac;

use crate::address::{self, subnet_of};
use crate::cell::Header;
use crate::clients::Lane;
use crate::core::{finish, headroom, seal_for_circuit, Core, Event, Settings};
use crate::counters::{DropReason, RouteStats};
use crate::ends::{is_usable, number_of_end, slot_of_circuit, words, Steering};
use crate::gate::Gate;
use crate::keys::Direction;
use crate::limits::Class;
use crate::outbox::Egress;
use crate::routes::{Circuit, Purpose, Routes};
use crate::rules::{ENCRYPTED_TCP, HTTPS, TCP};
use crate::shaper::Cost;
use crate::streams::error::StreamError;
use crate::streams::inspection;
use crate::streams::opening::Wish;
use crate::streams::parts::Message;
use crate::streams::quic::LinkId;
use crate::utp;

/// Streams a second that the other end of an end-to-end circuit may open, and an exit, with a burst of ten seconds' worth.
const GUESTS_PER_S: u64 = 1;
const CALLED_PER_S: u64 = 5;
const GUESTS_BURST_NS: u64 = 10_000_000_000;
/// Strangers a second who may connect to a circuit that ends here, with a burst of five seconds' worth.
const CALLERS_PER_S: u64 = 10;
/// Of these, from one address; the others have room while it calls without end.
const CALLERS_OF_ADDRESS_PER_S: u64 = 2;
const MAX_CALLERS_REMEMBERED: usize = 1024;
const CALLERS_BURST_NS: u64 = 5_000_000_000;
/// A port that policies of addresses let pass.
const ANY_PORT: u16 = 6881;
/// How often a number is looked for that nobody else has: as many guests may be behind one address at a time.
const MAX_TURNS: u32 = 256;
/// Ports that are remembered of a circuit, as its exit let no stream go there.
const MAX_FORBIDDEN_PORTS: usize = 256;
/// Streams that an exit may have open to us at a time.
const CALLED_AT_ONCE: u32 = 64;

impl Core {
    /// Begin a connection over a circuit of ours that may carry streams and has none.
    pub fn try_streams(&mut self, circuit_id: u32) {
        let Some(circuit) = self.routes.circuits.get(&circuit_id) else { return };
        let link = LinkId::ours(circuit_id);
        if circuit.tries_streams
            && !circuit.is_silent
            && circuit.may_carry()
            && !circuit.serves_streams()
            && !self.quic.has(link)
        {
            let streams = if circuit.purpose == Purpose::Data { CALLED_AT_ONCE } else { 0 };
            self.quic.connect(link, circuit.largest_message, streams, self.now);
        }
    }

    /// Put the cells of all streams that may leave by now into the outbox; stops when it is full.
    pub fn transmit_streams(&mut self) {
        let Self { quic, gate, routes, settings, counters, .. } = self;
        quic.transmit(self.now, |link, message| {
            let sent = if link.is_ours {
                let circuit = routes.circuits.get(&link.circuit_id).ok_or(DropReason::UnknownCircuit);
                circuit.and_then(|circuit| send_own(gate, settings, link.circuit_id, circuit, message))
            } else {
                send_back(gate, settings, routes, link.circuit_id, message)
            };
            if let Err(reason) = sent {
                counters.count(reason);
            }
            gate.outbox.has_room_for_a_train()
        });
    }

    // Circuits of ours

    /// The circuit of a lane that is to carry a stream to a destination (RFC 1928 encoding): the one with the fewest.
    pub fn link_for(&self, lane: Lane, destination: &[u8]) -> Option<LinkId> {
        let of_lane = self.that_may_carry(lane, destination).map(|(id, circuit)| (LinkId::ours(id), circuit));
        let connected = of_lane.filter(|(link, _)| self.quic.is_connected(*link));
        let is_ipv6 = address::is_ipv6(destination);
        let order = |(link, circuit): &(LinkId, &Circuit)| {
            let is_forbidden = self.is_forbidden(*link, destination);
            (is_forbidden, is_ipv6 && !circuit.reaches_ipv6, circuit.stats.read_streams().1, link.circuit_id)
        };
        connected.min_by_key(order).map(|(link, _)| link)
    }

    /// Note that a circuit's exit does not let streams go to the port of a destination (RFC 1928 encoding).
    pub fn forbidden(&mut self, link: LinkId, destination: &[u8]) {
        let Some(circuit) = self.routes.circuits.get_mut(&link.circuit_id) else { return };
        if circuit.forbidden_ports.len() < MAX_FORBIDDEN_PORTS {
            circuit.forbidden_ports.extend(port_of(destination));
        }
    }

    /// Whether a circuit's exit did not let streams go to the port of a destination.
    pub fn is_forbidden(&self, link: LinkId, destination: &[u8]) -> bool {
        let circuit = self.routes.circuits.get(&link.circuit_id).filter(|_| link.is_ours);
        circuit.zip(port_of(destination)).is_some_and(|(circuit, port)| circuit.forbidden_ports.contains(&port))
    }

    /// What the other end of a circuit, or a guest, is known as, if a destination (RFC 1928 encoding) stands for one.
    pub fn end_of(&self, destination: &[u8]) -> Option<u32> {
        let (destination, _) = address::parse_socks5(destination).ok()?;
        number_of_end(destination)
    }

    /// Whether this is an end-to-end circuit of the lane whose other end opens the streams.
    pub fn link_that_serves(&self, lane: Lane, known_as: u32) -> bool {
        let circuit = self.routes.end(lane, known_as).and_then(|id| self.routes.circuits.get(&id));
        circuit.is_some_and(Circuit::serves_streams)
    }

    /// Whether a circuit of ours is for clients of this lane.
    pub fn serves(&self, link: LinkId, lane: Lane) -> bool {
        let circuit = self.routes.circuits.get(&link.circuit_id);
        link.is_ours && circuit.is_some_and(|circuit| circuit.lane == lane)
    }

    /// What the other end of a circuit of ours may open streams for.
    pub fn guests_of(&self, link: LinkId) -> Result<Wish, StreamError> {
        let circuit = self.routes.circuits.get(&link.circuit_id).ok_or(StreamError::Gone)?;
        if circuit.serves_streams() {
            Ok(Wish::Connect)
        } else if circuit.purpose == Purpose::Data && self.routes.is_announced(link.circuit_id) {
            Ok(Wish::Call)
        } else {
            Err(StreamError::Forbidden(DropReason::StreamNotOffered))
        }
    }

    /// What a guest is known as who has called from this address: a number that leads here for clients of the circuit's
    /// lane, and is no circuit's. In one lane it is the same whenever he calls, but for those that others behind his
    /// address have now; in two lanes nothing is in common.
    pub fn guest_number(&self, circuit_id: u32, from: IpAddr) -> Option<u32> {
        let lane = self.routes.circuits.get(&circuit_id)?.lane;
        let steering = Steering::of(&self.settings.end_secret, lane);
        let slot = slot_of_circuit(circuit_id);
        let is_free = |number: u32| {
            !self.guests.contains_key(&number) && !self.met.contains(&number) && self.routes.end(lane, number).is_none()
        };
        (0..MAX_TURNS).find_map(|turn| {
            let named = hmac::sign(&self.guest_key, format!("{lane} {from} {turn}").as_bytes());
            let bits = words(named.as_ref()).next()?;
            Some(steering.number_for(slot, bits)).filter(|number| is_usable(*number) && is_free(*number))
        })
    }

    /// A guest waits for a client of the circuit's lane to connect to him.
    pub fn guest_waits(&mut self, circuit_id: u32, known_as: u32) {
        if let Some(circuit) = self.routes.circuits.get(&circuit_id) {
            self.guests.insert(known_as, circuit.lane);
        }
    }

    /// Whether a circuit of the lane may still come to carry streams.
    pub fn may_get_link(&self, lane: Lane, destination: &[u8]) -> bool {
        self.that_may_carry(lane, destination).any(|(id, _)| self.quic.has(LinkId::ours(id)))
    }

    fn that_may_carry<'a>(&'a self, lane: Lane, destination: &[u8]) -> impl Iterator<Item = (u32, &'a Circuit)> {
        let end = self.end_of(destination);
        self.routes.circuits.iter().map(|(id, circuit)| (*id, circuit)).filter(move |(_, circuit)| {
            let leads_there = match end {
                Some(end) => circuit.known_as == end && circuit.is_linked(),
                None => circuit.purpose == Purpose::Data && circuit.ready,
            };
            leads_there && circuit.lane == lane && circuit.tries_streams
        })
    }

    /// What answers a client's packet to the other end of a circuit, or to a guest, that begins a connection by uTP where
    /// streams would carry it. libtorrent tries uTP first, and TCP at once when that is refused (peer_connection.cpp,
    /// connect_failed).
    pub fn refusal_of_utp(&self, lane: Lane, end: u32, payload: &[u8]) -> Option<[u8; utp::HEADER_BYTES]> {
        let linked = self.routes.linked(lane, end);
        let has_streams = linked.is_some_and(|id| self.quic.is_connected(LinkId::ours(id)));
        if has_streams || self.guests.get(&end) == Some(&lane) {
            utp::refusal(payload)
        } else {
            None
        }
    }

    // What is seen

    fn stats_of(&self, link: LinkId) -> Option<&RouteStats> {
        if link.is_ours {
            self.routes.circuits.get(&link.circuit_id).map(|circuit| circuit.stats.as_ref())
        } else {
            self.routes.exits.get(&link.circuit_id).map(|exit| exit.stats.as_ref())
        }
    }

    /// Counts one more open stream of a circuit. A circuit that is gone is ignored.
    pub fn stream_opened(&self, link: LinkId) {
        if let Some(stats) = self.stats_of(link) {
            stats.stream_opened();
        }
    }

    /// An exit's TCP connection has sent and received so many bytes more.
    pub fn stream_carried(&self, link: LinkId, sent: usize, received: usize) {
        if let (false, Some(stats)) = (link.is_ours, self.stats_of(link)) {
            stats.sent(sent);
            stats.received(received);
        }
    }

    /// Counts one open stream fewer of a circuit. A circuit that is gone is ignored.
    pub fn stream_ended(&self, link: LinkId) {
        if let Some(stats) = self.stats_of(link) {
            stats.stream_ended();
        }
    }

    fn tell_python(&mut self, link: LinkId) {
        if link.is_ours {
            self.events.push(Event::Streams { circuit_id: link.circuit_id });
        }
    }

    /// The connection of a circuit is there.
    pub fn link_changed(&mut self, link: LinkId) {
        if let (Some(stats), Some(round_trip)) = (self.stats_of(link), self.quic.round_trip(link)) {
            stats.streams_spoken(true);
            stats.round_trip(u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX));
        }
        self.tell_python(link);
    }

    /// The connection of a circuit has failed: it is not tried again.
    pub fn link_lost(&mut self, link: LinkId) {
        if let Some(stats) = self.stats_of(link) {
            stats.streams_spoken(false);
        }
        if let (true, Some(circuit)) = (link.is_ours, self.routes.circuits.get_mut(&link.circuit_id)) {
            circuit.is_silent = true;
        }
        self.tell_python(link);
    }

    // Exits

    /// Returns whether an exit here lets out any protocol that travels by streams.
    pub fn offers_streams(&self) -> bool {
        self.settings.policy.offers() && self.exit_protocols() & (TCP | HTTPS | ENCRYPTED_TCP) != 0
    }

    fn exit_protocols(&self) -> u8 {
        self.rules.protocols_or(self.settings.policy.peer_flags)
    }

    /// What may pass the streams of a circuit.
    pub fn stream_protocols(&self, link: LinkId) -> u8 {
        if link.is_ours {
            TCP
        } else {
            self.exit_protocols()
        }
    }

    /// How many streams a circuit has.
    pub fn open_streams(&self, link: LinkId) -> u64 {
        self.stats_of(link).map_or(0, |stats| stats.read_streams().1)
    }

    /// How many streams are open of all circuits that end here and have the same previous hop.
    pub fn open_streams_of_neighbour(&self, link: LinkId) -> u64 {
        let Some(exit) = self.routes.exits.get(&link.circuit_id) else { return 0 };
        let hop = subnet_of(exit.previous_hop.ip());
        let exits = self.routes.exits.values().filter(|exit| subnet_of(exit.previous_hop.ip()) == hop);
        exits.map(|exit| exit.stats.read_streams().1).sum()
    }

    /// Whether the other end of a circuit may have our client connect to it; it is counted then.
    pub fn may_have_guest(&mut self, circuit_id: u32, wish: Wish) -> Result<(), StreamError> {
        let per_s = if wish == Wish::Call { CALLED_PER_S } else { GUESTS_PER_S };
        let circuit = self.routes.circuits.get_mut(&circuit_id).ok_or(StreamError::Gone)?;
        if !circuit.guests.permits(self.gate.now_ns) {
            return Err(StreamError::TooMuchNow(DropReason::StreamTooFast));
        }
        circuit.guests.take(1, per_s, GUESTS_BURST_NS, self.gate.now_ns);
        Ok(())
    }

    /// Whether strangers may connect to a circuit that ends here.
    pub fn may_be_called(&self, circuit_id: u32) -> Result<(), DropReason> {
        let exit = self.routes.exits.get(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        if !self.settings.policy.offers() || self.exit_protocols() & TCP == 0 {
            return Err(DropReason::StreamNotOffered);
        }
        let is_wanted = exit.strangers.is_announced() && self.rules.inbound_per_s.is_some();
        is_wanted.then_some(()).ok_or(DropReason::ExitStranger)
    }

    /// Whether what leaves may go to a host; its port means nothing here.
    pub fn may_answer(&self, host: IpAddr) -> Result<(), DropReason> {
        self.settings.policy.destination(SocketAddr::new(host, ANY_PORT))?;
        self.rules.network(host)
    }

    /// Whether one more stranger may connect from this address now; he is counted then.
    pub fn take_call(&mut self, circuit_id: u32, from: IpAddr) -> Result<(), DropReason> {
        self.may_be_called(circuit_id)?;
        self.may_answer(from)?;
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
        let (from, now_ns) = (subnet_of(from), self.gate.now_ns);
        if exit.callers_by.len() >= MAX_CALLERS_REMEMBERED {
            exit.callers_by.retain(|_, bucket| !bucket.permits(now_ns.saturating_sub(CALLERS_BURST_NS)));
        }
        let is_known = exit.callers_by.len() < MAX_CALLERS_REMEMBERED || exit.callers_by.contains_key(&from);
        let mut of_address = exit.callers_by.get(&from).copied().unwrap_or_default();
        if !exit.callers.permits(now_ns) || !of_address.permits(now_ns) {
            return Err(DropReason::ExitStrangersTooFast);
        }
        exit.callers.take(1, CALLERS_PER_S, CALLERS_BURST_NS, now_ns);
        of_address.take(1, CALLERS_OF_ADDRESS_PER_S, CALLERS_BURST_NS, now_ns);
        if is_known {
            exit.callers_by.insert(from, of_address);
        }
        Ok(())
    }

    /// A stranger who has connected is led to the client, with so many bytes that were judged.
    pub fn caller_came(&mut self, circuit_id: u32, bytes: usize) {
        self.tcp_first.has_come();
        self.counters.let_in(bytes);
        if let Some(exit) = self.routes.exits.get(&circuit_id) {
            exit.stats.active(self.now_ms);
        }
    }

    /// Sets whether a circuit that ends here can be called: it has a door, and room for one more caller.
    pub fn set_door(&mut self, circuit_id: u32, has_door: bool) {
        if let Some(exit) = self.routes.exits.get_mut(&circuit_id) {
            exit.has_door = has_door;
        }
    }

    /// Have doors opened to all circuits that may be called.
    pub fn may_get_doors(&mut self) {
        for circuit_id in self.routes.exits.keys().copied().collect::<Vec<_>>() {
            self.may_get_door(LinkId::exit(circuit_id));
        }
    }

    /// Have a door opened to a circuit that ends here, if it may be called.
    pub fn may_get_door(&mut self, link: LinkId) {
        if !link.is_ours && self.may_be_called(link.circuit_id).is_ok() {
            self.to_open_door.push(link.circuit_id);
        }
    }

    /// Whether an exit looks up this name for a stream; it is counted then.
    pub fn may_resolve(&mut self, circuit_id: u32, name: &str, port: u16) -> Result<(), StreamError> {
        inspection::may_connect(self.exit_protocols(), port)
            .and_then(|()| self.rules.stream_name(name, port))
            .map_err(StreamError::Forbidden)?;
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(StreamError::Gone)?;
        exit.dials.may_ask(self.gate.now_ns).map_err(StreamError::TooMuchNow)
    }

    /// Whether an exit connects to an address, and to which.
    pub fn may_dial(&mut self, circuit_id: u32, to: SocketAddr, by_name: bool) -> Result<SocketAddr, StreamError> {
        let to = self.permitted(to, by_name).map_err(StreamError::Forbidden)?;
        let exit = self.routes.exits.get_mut(&circuit_id).ok_or(StreamError::Gone)?;
        let now_ns = self.gate.now_ns;
        exit.dials
            .may_dial(to.ip(), now_ns)
            .and_then(|()| self.all_dials.may_dial(exit.previous_hop.ip(), to.ip(), now_ns))
            .and_then(|()| exit.contacts.may_send(&self.rules, to, now_ns))
            .map_err(StreamError::TooMuchNow)?;
        exit.stats.active(self.now_ms);
        Ok(to)
    }

    /// The address as it is connected to, if the exit's policy and rules let streams go there at all.
    fn permitted(&self, to: SocketAddr, by_name: bool) -> Result<SocketAddr, DropReason> {
        let policy = &self.settings.policy;
        if !policy.offers() {
            return Err(DropReason::ExitNotOffered);
        }
        inspection::may_connect(self.exit_protocols(), to.port())?;
        policy.destination(to)?;
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        self.rules.destination(to)?;
        if !by_name {
            self.rules.stream_name("", to.port())?;
        }
        Ok(to)
    }

    /// Counts a connection of an exit as unjudged until `dial_judged`, for its circuit and for the previous hop.
    pub fn dial_begun(&mut self, link: LinkId, to: IpAddr) {
        if let (false, Some(exit)) = (link.is_ours, self.routes.exits.get_mut(&link.circuit_id)) {
            exit.dials.begun(to);
            self.all_dials.begun(exit.previous_hop.ip(), to);
        }
    }

    /// What an exit has connected to has passed, or it has ended before; told once of each connection that was begun.
    pub fn dial_judged(&mut self, link: LinkId, to: IpAddr, has_passed: bool) {
        if let (false, Some(exit)) = (link.is_ours, self.routes.exits.get_mut(&link.circuit_id)) {
            exit.dials.judged(to, has_passed);
            self.all_dials.judged(exit.previous_hop.ip(), to, has_passed);
        }
    }

    /// Records that a destination has accepted a connection of an exit: it counts as a destination that answers.
    pub fn dial_succeeded(&mut self, link: LinkId, to: SocketAddr) {
        if let (false, Some(exit)) = (link.is_ours, self.routes.exits.get_mut(&link.circuit_id)) {
            exit.contacts.answered(to, self.gate.now_ns);
        }
    }
}

fn port_of(destination: &[u8]) -> Option<u16> {
    address::parse_socks5(destination).ok().map(|(destination, _)| destination.port())
}

/// Write a message to the slot, leaving room for so many layers.
fn place(slot: &mut [u8], layers: usize, message: &Message<'_>) -> Result<Range<usize>, DropReason> {
    let at = headroom(layers);
    let written = slot.get_mut(at..).and_then(|place| message.write(place)).ok_or(DropReason::CellTooLarge)?;
    Ok(at..at + written)
}

/// Send a stream message over a circuit of ours.
fn send_own(
    gate: &mut Gate,
    settings: &Settings,
    circuit_id: u32,
    circuit: &Circuit,
    message: &Message<'_>,
) -> Result<(), DropReason> {
    if !circuit.may_carry() {
        return Err(DropReason::CircuitNotReady);
    }
    let slot = gate.outbox.slot();
    let written = place(slot, circuit.layers.len() + usize::from(circuit.end_to_end.is_some()), message)?;
    let (to, packet) = seal_for_circuit(slot, settings, circuit_id, circuit, written, false)?;
    gate.send(Cost::outwards(Class::Own, circuit_id, packet.len(), 0), Egress::tunnel(to, circuit_id), packet);
    Ok(())
}

/// Send a stream message back over a circuit that ends here.
fn send_back(
    gate: &mut Gate,
    settings: &Settings,
    routes: &Routes,
    circuit_id: u32,
    message: &Message<'_>,
) -> Result<(), DropReason> {
    let exit = routes.exits.get(&circuit_id).ok_or(DropReason::UnknownCircuit)?;
    let slot = gate.outbox.slot();
    let written = place(slot, 1, message)?;
    let layer = exit.keys.seal(Direction::Backward, slot, written).ok_or(DropReason::CellTooLarge)?;
    let header = Header { circuit_id, plaintext: false, relay_early: false };
    let packet = finish(slot, &settings.prefix, header, &layer)?;
    let cost = Cost::outwards(Class::Exited, circuit_id, packet.len(), message.len());
    gate.send(cost, Egress::tunnel(exit.previous_hop, circuit_id), packet);
    Ok(())
}
