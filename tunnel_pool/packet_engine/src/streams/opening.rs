//! The first bytes of a stream: where the client wants it to lead or who has called, and the answer.
//!
//! ```text
//! client to exit:  1 | address (RFC 1928, 5), then what the application sends
//! exit to client:  2 | address of who has called, then what it sends
//! back:            reply code (RFC 1928, 6), then what the other end sends, if the code is 0
//! ```

use crate::address::{self, Destination, Malformed, MAX_ADDRESS_BYTES};

/// The purpose of a stream, as the first byte of its request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// Lead the stream to this address by TCP.
    Connect = 1,
    /// Who has connected to the exit by TCP from this address wants to reach a torrent of the client.
    Call = 2,
}

const MAX_BYTES: usize = 1 + MAX_ADDRESS_BYTES;

/// The reply codes of RFC 1928 (section 6) that are used here; socks5/messages.py has them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The connection is established; data of the other end follows.
    Succeeded = 0,
    /// Another failure, such as a malformed request or too many connections.
    GeneralFailure = 1,
    /// The exit's rules forbid it; another exit may allow it.
    NotAllowed = 2,
    /// The network is unreachable, or no circuit carries a client's stream.
    NetworkUnreachable = 3,
    /// The host is unreachable, or its name has no address that may be connected to.
    HostUnreachable = 4,
    /// The host has refused the connection.
    ConnectionRefused = 5,
    /// The connection was not answered in time.
    TtlExpired = 6,
}

impl Reply {
    /// What a code of the other end means; an unknown one is a failure.
    pub fn of(code: u8) -> Self {
        use Reply::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotAllowed, Succeeded, TtlExpired};
        let known = [Succeeded, NotAllowed, NetworkUnreachable, HostUnreachable, ConnectionRefused, TtlExpired];
        known.into_iter().find(|reply| *reply as u8 == code).unwrap_or(Reply::GeneralFailure)
    }

    /// The reply that a SOCKS5 client gets; the address in it tells nothing.
    pub fn to_client(self) -> [u8; 10] {
        [5, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// The request for a stream to a destination, or from who has called (RFC 1928 encoding).
pub fn request(wish: Wish, address: &[u8]) -> Vec<u8> {
    [&[wish as u8], address].concat()
}

/// The address of the request at the start of what the other end has sent, and how many bytes it takes; None while it is
/// not whole. It must have this wish.
pub fn parse_request(wish: Wish, bytes: &[u8]) -> Result<Option<(Destination<'_>, usize)>, Malformed> {
    match bytes {
        [] => Ok(None),
        [first, address @ ..] if *first == wish as u8 => match address::parse_socks5(address) {
            Ok((destination, address_bytes)) => Ok(Some((destination, 1 + address_bytes))),
            Err(Malformed) if bytes.len() < MAX_BYTES && may_go_on(address) => Ok(None),
            Err(Malformed) => Err(Malformed),
        },
        _ => Err(Malformed),
    }
}

/// Whether these may be the first bytes of an address.
fn may_go_on(address: &[u8]) -> bool {
    match address {
        [] => true,
        [1, rest @ ..] => rest.len() < 4 + 2,
        [3, rest @ ..] => rest.split_first().is_none_or(|(length, rest)| rest.len() < usize::from(*length) + 2),
        [4, rest @ ..] => rest.len() < 16 + 2,
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_as_written_in_any_pieces() {
        let addresses = [
            Destination::Ip("1.2.3.4:80".parse().unwrap()),
            Destination::Ip("[2001:db8::1]:6881".parse().unwrap()),
            Destination::Name(b"tracker.example", 443),
        ];
        for destination in addresses {
            let mut address = [0; MAX_ADDRESS_BYTES];
            let length = address::write_socks5(destination, &mut address).unwrap();
            for (wish, other) in [(Wish::Connect, Wish::Call), (Wish::Call, Wish::Connect)] {
                let written = request(wish, address.get(..length).unwrap());
                for end in 0..written.len() {
                    assert_eq!(parse_request(wish, written.get(..end).unwrap()), Ok(None));
                }
                let more = [&written[..], b"more"].concat();
                assert_eq!(parse_request(wish, &more), Ok(Some((destination, written.len()))));
                assert_eq!(parse_request(other, &more), Err(Malformed));
            }
        }
        assert_eq!(parse_request(Wish::Connect, &[3]), Err(Malformed));
        assert_eq!(parse_request(Wish::Connect, &[1, 2]), Err(Malformed));
    }

    #[test]
    fn an_unknown_code_is_a_failure() {
        assert_eq!(Reply::of(0), Reply::Succeeded);
        assert_eq!(Reply::of(5), Reply::ConnectionRefused);
        assert_eq!(Reply::of(77), Reply::GeneralFailure);
    }

    proptest! {
        #[test]
        fn no_request_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..6) {
            let mut bytes = bytes;
            if let [command, address_kind, ..] = bytes.as_mut_slice() {
                (*command, *address_kind) = (1, kind);
            }
            if let Ok(Some((_, length))) = parse_request(Wish::Connect, &bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
