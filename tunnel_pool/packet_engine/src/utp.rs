//! uTP (BEP 29), as far as a node has to know it. Pure.
//!
//! A packet: type (4 bits) and version (4 bits), extension (1), connection (2), timestamp (4), its difference (4),
//! window (4), sequence number (2), acknowledged number (2).

/// Offset of the connection id (2 bytes).
pub const CONNECTION_AT: usize = 2;
const WINDOW_AT: usize = 12;
/// Offset of the sequence number (2 bytes).
pub const SEQUENCE_AT: usize = 16;
/// Length in bytes of the header, without extensions.
pub const HEADER_BYTES: usize = 20;
const ACKNOWLEDGED_AT: usize = 18;

const LAST_TYPE: u8 = 4;
const LAST_EXTENSION: u8 = 3;
const RESET: u8 = 0x31;
const SYN: u8 = 0x41;

/// Whether an exit that carries BitTorrent takes a datagram for uTP (py-ipv8 exit_socket.py, DataChecker).
pub fn could_be_utp(data: &[u8]) -> bool {
    match data {
        [first, extension, ..] => {
            data.len() >= HEADER_BYTES && first >> 4 <= LAST_TYPE && first & 15 == 1 && *extension <= LAST_EXTENSION
        }
        _ => false,
    }
}

/// Returns the 16 bits at an offset, big endian; None past the end of the packet.
pub fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// The packet that refuses a connection, if this one begins one: the other side of it may then try TCP.
pub fn refusal(packet: &[u8]) -> Option<[u8; HEADER_BYTES]> {
    if packet.first() != Some(&SYN) || !could_be_utp(packet) {
        return None;
    }
    let mut reset = [0; HEADER_BYTES];
    *reset.first_mut()? = RESET;
    for (at, value) in [(CONNECTION_AT, word(packet, CONNECTION_AT)?), (ACKNOWLEDGED_AT, word(packet, SEQUENCE_AT)?)] {
        reset.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    }
    Some(reset)
}

/// Whether a packet begins a connection of libtorrent, which turns to TCP at once when that is refused: it offers no window
/// yet (utp_stream.cpp, send_syn). Others give the peer up then: Transmission 3 does for a quarter of an hour.
pub fn is_libtorrents_syn(packet: &[u8]) -> bool {
    packet.len() == HEADER_BYTES
        && packet.starts_with(&[SYN, 0])
        && packet.get(WINDOW_AT..WINDOW_AT + 4) == Some(&[0; 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_is_refused_by_its_connection_and_sequence_number() {
        let syn = [0x41, 0, 7, 8, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 9, 10, 0, 0];
        let reset = [0x31, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10];
        assert_eq!(refusal(&syn), Some(reset));
        assert_eq!(refusal(&reset), None);
        assert_eq!(refusal(&syn[..19]), None);
        assert_eq!(refusal(b"d1:y1:qe"), None);
    }

    #[test]
    fn libtorrent_is_known_by_its_syn() {
        let of_libtorrent = [0x41, 0, 7, 8, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 0, 0];
        assert!(is_libtorrents_syn(&of_libtorrent));
        let of_libutp = [0x41, 0, 7, 8, 1, 1, 1, 1, 0, 0, 0, 0, 0, 4, 0, 0, 9, 10, 0, 0];
        let with_extension = [&[0x41, 2], &of_libtorrent[2..], &[0; 10]].concat();
        for other in [&of_libutp[..], &with_extension, &of_libtorrent[..19], &[0x21; 20]] {
            assert!(!is_libtorrents_syn(other));
        }
    }
}
