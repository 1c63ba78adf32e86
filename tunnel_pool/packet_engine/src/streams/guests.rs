//! Guests: streams that the other end of a circuit of ours has opened, until a client of ours connects to them. A part of
//! `Service`.
//!
//! The other end of an end-to-end circuit is a downloader, and known as the circuit's other end. At an exit it is a
//! stranger who has called (doors.rs), for one of the client's torrents; he is known by a number of his own, which no
//! circuit has, and which he has again when he comes again, so that a client's ban holds. Clients find a guest at the
//! address of this number (ends.rs).

use crate::address::Destination;
use crate::core::{Core, Event as Notice};
use crate::counters::DropReason;
use crate::streams::bridge::{Asked, Bridge};
use crate::streams::entries::{turn_away, Client, Entry, Opening, Step, Watch};
use crate::streams::error::StreamError;
use crate::streams::inspection::{self, Inspection, Verdict, HASH_AT, HASH_BYTES};
use crate::streams::opening::{self, Reply, Wish};
use crate::streams::quic::StreamKey;
use crate::streams::service::Service;

/// What the beginning of a handshake says; None while too little of it is there.
fn infohash_of(bytes: &[u8]) -> Result<Option<[u8; HASH_BYTES]>, StreamError> {
    match inspection::is_bittorrent(bytes) {
        Verdict::Refused => Err(StreamError::Forbidden(DropReason::StreamContentRefused)),
        Verdict::Undecided => Ok(None),
        Verdict::Passes => Ok(bytes.get(HASH_AT..).and_then(<[u8]>::first_chunk).copied()),
    }
}

/// What a guest is known as, and the torrent that he asks for, if he has called.
type Known = (u32, Option<[u8; HASH_BYTES]>);

impl Service {
    /// Read the request of a stream that the other end of a circuit of ours has opened, and tell Python of a guest.
    pub(super) fn guest_asked(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Opening(opening)) = self.entries.get_mut(&number) else { return };
        let circuit_id = opening.key.link.circuit_id;
        match opening.guest(core) {
            Ok(None) => {}
            Ok(Some((known_as, infohash))) => {
                opening.step = Step::Guest { known_as };
                core.guest_waits(circuit_id, known_as);
                core.events.push(Notice::Guest { circuit_id, known_as, infohash });
            }
            Err(error) => {
                let _ = error.counted(&core.counters);
                self.answer(core, number, Reply::GeneralFailure); // who has called does not learn why
            }
        }
    }

    /// Tell guests that are known so that no client will connect to them.
    pub fn refuse_guests(&mut self, core: &mut Core, known_as: u32) {
        let is_one = |entry: &Entry| entry.waiting_guest().is_some_and(|(_, waiting)| waiting == known_as);
        let numbers: Vec<u32> =
            self.entries.iter().filter(|(_, entry)| is_one(entry)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.answer(core, number, Reply::GeneralFailure);
        }
    }

    /// Join a client with the guest that its destination stands for; the client is given back if there is none.
    pub(super) fn meet_guest(&mut self, core: &mut Core, watch: &impl Watch, client: Client) -> Option<Client> {
        let Asked { lane, destination, .. } = &client.asked;
        let Some(end) = core.end_of(destination) else { return Some(client) };
        let guest = self.entries.iter().find(|(_, entry)| {
            entry.waiting_guest().is_some_and(|(key, known_as)| known_as == end && core.serves(key.link, *lane))
        });
        match guest.map(|(number, _)| *number) {
            Some(number) => self.join_guest(core, watch, client, number),
            None if core.link_that_serves(*lane, end) => turn_away(client.socket, StreamError::NoGuest.reply()),
            None => return Some(client),
        }
        None
    }

    fn join_guest(&mut self, core: &mut Core, watch: &impl Watch, client: Client, number: u32) {
        let Some(opening) = self.take_opening(core, number) else { return };
        let inspection = Inspection::new(core.stream_protocols(opening.key.link), 0);
        let early = opening.bytes.get(opening.request_bytes..).unwrap_or_default();
        let Client { socket, asked } = client;
        let mut bridge = Bridge::of_guest(opening.key, socket, inspection, early, &asked.early, core.now);
        if let Step::Guest { known_as } = opening.step {
            let circuit = core.routes.circuits.get(&opening.key.link.circuit_id);
            bridge.guest = circuit.is_some_and(|circuit| circuit.known_as != known_as).then_some(known_as);
            core.met.extend(bridge.guest);
        }
        self.watch_and_join(core, watch, number, bridge);
    }

    /// Remove a stream whose connection is not there yet.
    pub(super) fn take_opening(&mut self, core: &mut Core, number: u32) -> Option<Opening> {
        let opening = match self.entries.remove(&number)? {
            Entry::Opening(opening) => opening,
            other => {
                self.entries.insert(number, other);
                return None;
            }
        };
        match opening.step {
            Step::Guest { known_as } => {
                let is_other = |entry: &Entry| entry.waiting_guest().is_some_and(|(_, waiting)| waiting == known_as);
                if !self.entries.values().any(is_other) {
                    core.guests.remove(&known_as);
                }
            }
            Step::Connecting { to, .. } => core.dial_judged(opening.key.link, to.ip(), false),
            _ => {}
        }
        Some(opening)
    }
}

impl Entry {
    /// The stream of a guest for whom a client has yet to connect, and what he is known as.
    fn waiting_guest(&self) -> Option<(StreamKey, u32)> {
        match self {
            Entry::Opening(Opening { key, step: Step::Guest { known_as }, .. }) => Some((*key, *known_as)),
            _ => None,
        }
    }
}

impl Opening {
    /// What this guest is known as, and the torrent that he asks for if he has called; None while too little has come.
    fn guest(&mut self, core: &mut Core) -> Result<Option<Known>, StreamError> {
        let StreamKey { link, .. } = self.key;
        let wish = core.guests_of(link)?;
        let request = opening::parse_request(wish, &self.bytes).map_err(|_| StreamError::Malformed)?;
        let Some((from, request_bytes)) = request else { return Ok(None) };
        self.request_bytes = request_bytes;
        if wish == Wish::Connect {
            core.may_have_guest(link.circuit_id, wish)?;
            let circuit = core.routes.circuits.get(&link.circuit_id).ok_or(StreamError::Gone)?;
            return Ok(Some((circuit.known_as, None)));
        }
        let Destination::Ip(from) = from else { return Err(StreamError::Malformed) };
        let Some(infohash) = infohash_of(self.bytes.get(request_bytes..).unwrap_or_default())? else {
            return Ok(None);
        };
        core.may_have_guest(link.circuit_id, wish)?;
        let known_as = core.guest_number(link.circuit_id, from.ip()).ok_or(StreamError::TooMany)?;
        Ok(Some((known_as, Some(infohash))))
    }
}
