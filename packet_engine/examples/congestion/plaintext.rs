//! QUIC without its own encryption, for connections whose packets travel in sealed cells.
//!
//! The handshake carries the transport parameters (RFC 9000, 18) of both sides, bare, and nothing else: the client's in
//! its first CRYPTO frame, the server's in its answer. Packets have neither header protection nor a tag.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

struct NoProtection;

impl HeaderKey for NoProtection {
    fn decrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        0
    }
}

impl PacketKey for NoProtection {
    fn encrypt(&self, _packet: u64, _buf: &mut [u8], _header_len: usize) {}

    fn decrypt(&self, _packet: u64, _header: &[u8], _payload: &mut BytesMut) -> Result<(), CryptoError> {
        Ok(())
    }

    fn tag_len(&self) -> usize {
        0
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

fn packet_keys() -> KeyPair<Box<dyn PacketKey>> {
    KeyPair { local: Box::new(NoProtection), remote: Box::new(NoProtection) }
}

fn keys() -> Keys {
    let header = KeyPair { local: Box::new(NoProtection) as _, remote: Box::new(NoProtection) as _ };
    Keys { header, packet: packet_keys() }
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
    ours: TransportParameters,
    theirs: Option<TransportParameters>,
    has_written: bool,
    taken: Taken,
}

impl PlaintextSession {
    fn new(side: Side, ours: TransportParameters) -> Self {
        Self { side, ours, theirs: None, has_written: false, taken: Taken::Neither }
    }

    fn write_parameters(&mut self, buf: &mut Vec<u8>) {
        self.ours.write(buf);
        self.has_written = true;
    }
}

impl Session for PlaintextSession {
    fn initial_keys(&self, _dst_cid: &ConnectionId, _side: Side) -> Keys {
        keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
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

    fn read_handshake(&mut self, mut buf: &[u8]) -> Result<bool, TransportError> {
        if self.theirs.is_some() {
            return Ok(false);
        }
        self.theirs = Some(TransportParameters::read(self.side, &mut buf)?);
        Ok(true)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.theirs)
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
        Some(packet_keys())
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

/// Starts the sessions of either side.
pub struct Plaintext;

impl ClientConfig for Plaintext {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(PlaintextSession::new(Side::Client, *params)))
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
        Box::new(PlaintextSession::new(Side::Server, *params))
    }
}
