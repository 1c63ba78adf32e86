//! QUIC without its own encryption, for connections whose packets travel in sealed cells.
//!
//! The handshake carries a greeting and the transport parameters (RFC 9000, 18) of both sides, bare, and nothing else:
//! the client's in its first CRYPTO frame, the server's in its answer. Packets have no header protection. Their tag proves
//! nothing to anybody but tells what a real one would: a header has the last bits of the packet's number alone, from which a
//! late packet's is guessed wrongly, and one bit of the keys' generation (RFC 9000, A.3; RFC 9001, 6).
//!
//! ```text
//! greeting:  version (1) | bytes that follow (1) | largest message (2, big endian) | fields of later versions
//! tag:       the packet's number modulo 2^24 (3, big endian) | the generation of the keys modulo 256 (1)
//! ```

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};

/// The version of streams that we speak. Whoever reads a later one takes the fields that it knows.
pub const VERSION: u8 = 1;

/// What an end says of itself in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of streams that this end speaks, 1 or later.
    pub version: u8,
    /// The most bytes of a cell's message that reach this end in one packet.
    pub largest_message: u16,
}

impl Greeting {
    /// Returns a greeting with our `VERSION`.
    pub fn ours(largest_message: u16) -> Self {
        Self { version: VERSION, largest_message }
    }

    fn write(self, buf: &mut Vec<u8>) {
        let [high, low] = self.largest_message.to_be_bytes();
        buf.extend([self.version, 2, high, low]);
    }

    /// The greeting, and what follows it. None when it is cut short, or of no version.
    fn read(buf: &[u8]) -> Option<(Self, &[u8])> {
        let [version, length, rest @ ..] = buf else { return None };
        let (fields, rest) = rest.split_at_checked(usize::from(*length))?;
        let [high, low, ..] = fields else { return None };
        (*version > 0).then_some((Self { version: *version, largest_message: u16::from_be_bytes([*high, *low]) }, rest))
    }
}

struct NoProtection;

impl HeaderKey for NoProtection {
    fn decrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        0
    }
}

const TAG_BYTES: usize = 4;

/// How often the keys were updated before these came.
#[derive(Clone, Copy)]
struct Generation(u8);

impl Generation {
    fn tag(self, packet: u64) -> [u8; TAG_BYTES] {
        let [.., high, middle, low] = packet.to_be_bytes();
        [high, middle, low, self.0]
    }

    fn pair(self) -> KeyPair<Box<dyn PacketKey>> {
        KeyPair { local: Box::new(self), remote: Box::new(self) }
    }
}

impl PacketKey for Generation {
    fn encrypt(&self, packet: u64, buf: &mut [u8], _header_len: usize) {
        if let Some(tag) = buf.last_chunk_mut() {
            *tag = self.tag(packet);
        }
    }

    fn decrypt(&self, packet: u64, _header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        if payload.last_chunk() != Some(&self.tag(packet)) {
            return Err(CryptoError);
        }
        payload.truncate(payload.len() - TAG_BYTES);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

fn keys() -> Keys {
    let header = KeyPair { local: Box::new(NoProtection) as _, remote: Box::new(NoProtection) as _ };
    Keys { header, packet: Generation(0).pair() }
}

/// How many of the two sets of keys (of the handshake, and of the data) the connection has taken.
#[derive(Clone, Copy, PartialEq)]
enum Taken {
    Neither,
    Handshake,
    Both,
}

struct PlaintextSession {
    side: Side,
    greeting: Greeting,
    ours: TransportParameters,
    theirs: Option<(Greeting, TransportParameters)>,
    has_written: bool,
    taken: Taken,
    generation: Generation,
}

impl PlaintextSession {
    fn new(side: Side, greeting: Greeting, ours: TransportParameters) -> Self {
        Self {
            side,
            greeting,
            ours,
            theirs: None,
            has_written: false,
            taken: Taken::Neither,
            generation: Generation(0),
        }
    }

    fn write_parameters(&mut self, buf: &mut Vec<u8>) {
        self.greeting.write(buf);
        self.ours.write(buf);
        self.has_written = true;
    }
}

impl Session for PlaintextSession {
    fn initial_keys(&self, _dst_cid: &ConnectionId, _side: Side) -> Keys {
        keys()
    }

    /// The other end's `Greeting`.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.theirs.map(|(greeting, _)| Box::new(greeting) as _)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.theirs.is_none() || !self.has_written
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        if self.theirs.is_some() {
            return Ok(false);
        }
        let (greeting, mut parameters) = Greeting::read(buf).ok_or(TransportErrorCode::PROTOCOL_VIOLATION)?;
        self.theirs = Some((greeting, TransportParameters::read(self.side, &mut parameters)?));
        Ok(true)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.theirs.map(|(_, parameters)| parameters))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        if self.side.is_client() && !self.has_written {
            self.write_parameters(buf);
        }
        match self.taken {
            Taken::Neither => self.taken = Taken::Handshake,
            Taken::Handshake => {
                if self.side.is_server() {
                    self.write_parameters(buf);
                }
                self.taken = Taken::Both;
            }
            Taken::Both => return None,
        }
        Some(keys())
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.generation.0 = self.generation.0.wrapping_add(1);
        Some(self.generation.pair())
    }

    fn is_valid_retry(&self, _orig_dst_cid: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        false // nobody asks for one: a circuit proves its sender's address
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// Starts the sessions of either side, which say this greeting.
pub struct Plaintext(pub Greeting);

impl ClientConfig for Plaintext {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(PlaintextSession::new(Side::Client, self.0, *params)))
    }
}

impl ServerConfig for Plaintext {
    fn initial_keys(&self, _version: u32, _dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys())
    }

    fn retry_tag(&self, _version: u32, _orig_dst_cid: &ConnectionId, _packet: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(self: Arc<Self>, _version: u32, params: &TransportParameters) -> Box<dyn Session> {
        Box::new(PlaintextSession::new(Side::Server, self.0, *params))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_read_as_written_and_later_fields_are_skipped() {
        let mut written = Vec::new();
        Greeting::ours(1371).write(&mut written);
        assert_eq!(Greeting::read(&written), Some((Greeting::ours(1371), &[][..])));
        let later = [2, 4, 5, 91, 7, 7, 9];
        assert_eq!(Greeting::read(&later), Some((Greeting { version: 2, largest_message: 1371 }, &[9][..])));
        assert_eq!(Greeting::read(&[0, 2, 5, 91]), None);
        assert_eq!(Greeting::read(&[1, 1, 5, 91]), None);
    }

    #[test]
    fn a_packet_opens_under_its_number_and_its_keys_alone() {
        let mut packet = *b"headerpayload....";
        Generation(3).encrypt(0x1_0203_0405, &mut packet, 6);
        let opened = |generation, number| {
            let mut payload = BytesMut::from(&packet[6..]);
            Generation(generation).decrypt(number, b"header", &mut payload).ok().map(|()| payload)
        };
        assert_eq!(opened(3, 0x1_0203_0405).unwrap(), b"payload"[..]);
        assert_eq!(opened(3, 0x1_0203_0305), None);
        assert_eq!(opened(4, 0x1_0203_0405), None);
        assert!(Generation(0).decrypt(0, b"", &mut BytesMut::from(&b"\0\0"[..])).is_err());
    }

    proptest! {
        #[test]
        fn no_handshake_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), with_greeting: bool) {
            let mut whole = Vec::new();
            if with_greeting {
                Greeting::ours(1371).write(&mut whole);
            }
            whole.extend(bytes);
            for side in [Side::Client, Side::Server] {
                let ours = TransportParameters::read(side, &mut &[][..]).unwrap();
                let mut session = PlaintextSession::new(side, Greeting::ours(1371), ours);
                let _ = session.read_handshake(&whole);
            }
        }
    }
}
