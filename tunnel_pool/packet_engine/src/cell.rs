//! The cell on the wire (py-ipv8 payload.py, CellPayload) and the data message in it (DataPayload).
//!
//! ```text
//! 0        22  23          27        28          29
//! +--------+---+-----------+---------+-----------+---------------------+
//! | prefix | 0 | circuit id| plain   | relay     | message (encrypted  |
//! |        |   | (big end.)| text    | early     | once per hop)       |
//! +--------+---+-----------+---------+-----------+---------------------+
//!
//! data message:  1 | destination | origin | payload
//! ```

use std::ops::Range;

use crate::address::{self, Destination, Malformed};

/// Length of an overlay's prefix in bytes: a zero, the version (1) and the community id (20).
pub const PREFIX_BYTES: usize = 22;
/// Offset of the message in a cell, in bytes.
pub const MESSAGE_AT: usize = 29;
const CELL_ID: u8 = 0;

/// The id of a data message: a datagram with its destination and its origin (py-ipv8 payload.py, DataPayload).
pub const DATA_ID: u8 = 1;
/// The id of the unencrypted handshake that begins a circuit (py-ipv8 payload.py, CreatePayload).
pub const CREATE_ID: u8 = 2;
/// The id of the request to add a hop; its cell has the relay_early flag (py-ipv8 payload.py, ExtendPayload).
pub const EXTEND_ID: u8 = 4;
/// The id of a speed test's request (py-ipv8 payload.py, TestRequestPayload).
pub const TEST_REQUEST_ID: u8 = 19;
/// The id of a request for an exit to make by HTTP, in Tribler's network (overlay/requests/http.py).
pub const HTTP_REQUEST_ID: u8 = 28;
/// The id of one part of the answer to an HTTP request, in Tribler's network (overlay/requests/http.py).
pub const HTTP_RESPONSE_ID: u8 = 29;
/// The id of a stream message, with a packet of QUIC or half of one (docs/WIRE.md). Nodes that don't know it ignore it.
pub const STREAM_ID: u8 = 32;

/// The first bytes of every message of an overlay, by which overlays on one socket are told apart.
pub type Prefix = [u8; PREFIX_BYTES];

/// The fields of a cell between prefix and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The circuit's id between two neighbours; another one on each link.
    pub circuit_id: u32,
    /// The message is not encrypted.
    pub plaintext: bool,
    /// The cell may hold EXTEND. A relay passes on a bounded number of such cells of a circuit, which bounds the
    /// circuit's length.
    pub relay_early: bool,
}

/// The kind of a datagram from the tunnels' socket, by its first bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A cell of our overlay, with at least one byte of message.
    Cell(Header),
    /// Some other message of the community, or of another one.
    Other,
    /// A datagram that is shorter than a prefix, or a message of our overlay that is cut short.
    Malformed,
}

/// What a datagram from the tunnel socket is; a cell has at least one byte of message.
pub fn kind(prefix: &Prefix, datagram: &[u8]) -> Kind {
    let Some((start, rest)) = datagram.split_first_chunk::<PREFIX_BYTES>() else {
        return Kind::Malformed;
    };
    if start != prefix {
        return Kind::Other;
    }
    match rest {
        [CELL_ID, a, b, c, d, plaintext, early, _, ..] => Kind::Cell(Header {
            circuit_id: u32::from_be_bytes([*a, *b, *c, *d]),
            plaintext: *plaintext != 0,
            relay_early: *early != 0,
        }),
        [] | [CELL_ID, ..] => Kind::Malformed,
        _ => Kind::Other,
    }
}

/// Write everything before the message. None when there is no room.
pub fn write_header(buffer: &mut [u8], prefix: &Prefix, header: Header) -> Option<()> {
    let whole = buffer.first_chunk_mut::<MESSAGE_AT>()?;
    let (start, rest) = whole.split_first_chunk_mut::<PREFIX_BYTES>()?;
    start.copy_from_slice(prefix);
    let [a, b, c, d] = header.circuit_id.to_be_bytes();
    rest.copy_from_slice(&[CELL_ID, a, b, c, d, u8::from(header.plaintext), u8::from(header.relay_early)]);
    Some(())
}

/// A data message taken apart; `payload` is a range of the message.
#[derive(Debug, PartialEq, Eq)]
pub struct DataMessage<'a> {
    /// The datagram's destination; `NOWHERE` in a message from an exit.
    pub destination: Destination<'a>,
    /// The datagram's source; `NOWHERE` in a message to an exit.
    pub origin: Destination<'a>,
    /// The range of the datagram's payload in the message.
    pub payload: Range<usize>,
}

/// Parses a data message, which begins with its id. Err when the id is another one, or an address is malformed.
pub fn parse_data(message: &[u8]) -> Result<DataMessage<'_>, Malformed> {
    let rest = message.strip_prefix(&[DATA_ID]).ok_or(Malformed)?;
    let (destination, destination_bytes) = address::parse_packed(rest)?;
    let rest = rest.get(destination_bytes..).ok_or(Malformed)?;
    let (origin, origin_bytes) = address::parse_packed(rest)?;
    Ok(DataMessage { destination, origin, payload: 1 + destination_bytes + origin_bytes..message.len() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PREFIX: Prefix = [7; PREFIX_BYTES];

    #[test]
    fn a_header_is_read_as_written() {
        let header = Header { circuit_id: 0x0102_0304, plaintext: false, relay_early: true };
        let mut buffer = [0; MESSAGE_AT + 1];
        write_header(&mut buffer, &PREFIX, header).unwrap();
        assert_eq!(kind(&PREFIX, &buffer), Kind::Cell(header));
        assert_eq!(kind(&PREFIX, buffer.split_last().unwrap().1), Kind::Malformed);
        assert_eq!(kind(&[8; PREFIX_BYTES], &buffer), Kind::Other);
        assert_eq!(write_header(&mut [0; MESSAGE_AT - 1], &PREFIX, header), None);
    }

    proptest! {
        #[test]
        fn no_datagram_panics(datagram in prop::collection::vec(any::<u8>(), 0..80), with_prefix: bool) {
            let mut whole = if with_prefix { PREFIX.to_vec() } else { vec![] };
            whole.extend(datagram);
            if let Kind::Cell(_) = kind(&PREFIX, &whole) {
                prop_assert!(whole.len() > MESSAGE_AT);
            }
        }

        #[test]
        fn no_message_panics(mut message in prop::collection::vec(any::<u8>(), 0..80), first in 0u8..4, second in 0u8..4) {
            if let [id, kind, rest @ ..] = message.as_mut_slice() {
                (*id, *kind) = (DATA_ID, first);
                if let Some(byte) = rest.get_mut(6) { *byte = second; }
            }
            if let Ok(data) = parse_data(&message) {
                prop_assert!(message.get(data.payload).is_some());
            }
        }
    }
}
