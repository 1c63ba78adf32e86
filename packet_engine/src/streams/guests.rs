//! Guests: streams that the other end of a circuit of ours has opened, until a client of ours connects to them. A part of
//! `Service`.
//!
//! The other end of an end-to-end circuit is a downloader, and known by the circuit's id. At an exit it is a stranger who
//! has called (doors.rs), for one of the client's torrents; he is known by an id of his own, which no circuit has. Clients
//! find a guest at the address that stands for his id.

use crate::core::{Core, Event as Notice};
use crate::counters::DropReason;
use crate::streams::bridge::Bridge;
use crate::streams::inspection::{self, Inspection, Verdict, HASH_AT, HASH_BYTES};
use crate::streams::opening::{self, Reply, Wish};
use crate::streams::quic::StreamKey;
use crate::streams::service::{turn_away, Client, Entry, Opening, Service, Step, Watch};

/// What the beginning of a handshake says; None while too little of it is there.
fn infohash_of(bytes: &[u8]) -> Result<Option<[u8; HASH_BYTES]>, DropReason> {
    match inspection::is_bittorrent(bytes) {
        Verdict::Refused => Err(DropReason::StreamContentRefused),
        Verdict::Undecided => Ok(None),
        Verdict::Passes => Ok(bytes.get(HASH_AT..).and_then(<[u8]>::first_chunk).copied()),
    }
}

impl Service {
    /// Read the request of a stream that the other end of a circuit of ours has opened, and tell Python of a guest.
    pub(super) fn guest_asked(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Opening(opening)) = self.entries.get_mut(&number) else { return };
        let circuit_id = opening.key.link.circuit_id;
        let (notice, known_as) = match opening.guest(core) {
            Ok(None) => return,
            Ok(Some(infohash)) => {
                let known_as = infohash.map_or(circuit_id, |_| core.new_guest_id(circuit_id));
                (Notice::Guest { circuit_id, known_as, infohash }, known_as)
            }
            Err(reason) => {
                core.counters.count(reason);
                self.refuse(core, number, Reply::GeneralFailure);
                return;
            }
        };
        opening.step = Step::Guest { known_as };
        core.guests.insert(known_as);
        core.events.push(notice);
    }

    /// Join a client with the guest that its destination stands for; the client is given back if there is none.
    pub(super) fn meet_guest(&mut self, core: &mut Core, watch: &impl Watch, client: Client) -> Option<Client> {
        let Some(end) = core.end_of(&client.destination) else { return Some(client) };
        let guest = self.entries.iter().find(|(_, entry)| match entry {
            Entry::Opening(Opening { key, step: Step::Guest { known_as }, .. }) => {
                *known_as == end && core.serves(key.link, client.lane)
            }
            _ => false,
        });
        match guest.map(|(number, _)| *number) {
            Some(number) => self.join_guest(core, watch, client, number),
            None if core.link_that_serves(client.lane, end) => turn_away(client.socket, Reply::HostUnreachable),
            None => return Some(client),
        }
        None
    }

    fn join_guest(&mut self, core: &mut Core, watch: &impl Watch, client: Client, number: u32) {
        let Some(opening) = self.take_opening(core, number) else { return };
        let inspection = Inspection::new(core.stream_protocols(opening.key.link), 0);
        let early = opening.bytes.get(opening.request_bytes..).unwrap_or_default();
        let bridge = Bridge::of_guest(opening.key, client.socket, inspection, early, &client.early, core.now);
        self.watch_and_join(core, watch, number, bridge);
    }

    /// Remove a stream whose connection is not there yet.
    pub(super) fn take_opening(&mut self, core: &mut Core, number: u32) -> Option<Opening> {
        let Some(Entry::Opening(_)) = self.entries.get(&number) else { return None };
        let Some(Entry::Opening(opening)) = self.entries.remove(&number) else { return None };
        if let Step::Guest { known_as } = opening.step {
            let is_other = |entry: &Entry| matches!(entry, Entry::Opening(Opening { step: Step::Guest { known_as: other }, .. }) if *other == known_as);
            if !self.entries.values().any(is_other) {
                core.guests.remove(&known_as);
            }
        }
        Some(opening)
    }
}

impl Opening {
    /// Whether this is a guest, and the torrent that he asks for if he has called; None while too little has come.
    fn guest(&mut self, core: &mut Core) -> Result<Option<Option<[u8; HASH_BYTES]>>, DropReason> {
        let StreamKey { link, .. } = self.key;
        let wish = core.guests_of(link)?;
        let request = opening::parse_request(wish, &self.bytes).map_err(|_| DropReason::StreamMalformed)?;
        let Some((_, request_bytes)) = request else { return Ok(None) };
        self.request_bytes = request_bytes;
        let infohash = match wish {
            Wish::Connect => None,
            Wish::Call => match infohash_of(self.bytes.get(request_bytes..).unwrap_or_default())? {
                None => return Ok(None),
                infohash => infohash,
            },
        };
        core.may_have_guest(link.circuit_id, wish)?;
        Ok(Some(infohash))
    }
}
