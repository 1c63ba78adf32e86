//! What may pass an exit by TCP, judged by the first bytes of both sides.
//!
//! BitTorrent's handshake (BEP 3) begins with 19 and "BitTorrent protocol", in both directions. A TLS connection begins
//! with a ClientHello in a handshake record (RFC 8446, 5.1), and is answered by a handshake record or an alert. An
//! encrypted handshake of BitTorrent looks like nothing, so that it passes only where everything may.

use crate::counters::DropReason;
use crate::rules::{ENCRYPTED_TCP, HTTPS, HTTPS_PORT, TCP};

const HANDSHAKE: &[u8; 20] = b"\x13BitTorrent protocol";
/// Eight reserved bytes follow, and the torrent's hash.
pub const HASH_AT: usize = HANDSHAKE.len() + 8;
/// Length in bytes of the torrent's hash in BitTorrent's handshake.
pub const HASH_BYTES: usize = 20;
const HASH_END: usize = HASH_AT + HASH_BYTES;
const TLS_HANDSHAKE: u8 = 22;
const TLS_ALERT: u8 = 21;
const CLIENT_HELLO: u8 = 1;
/// Type, version (2), length (2), and the type of the message in it.
const TLS_START_BYTES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    BitTorrent,
    Tls,
    Anything,
}

/// What the bytes so far say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They may pass, and so may all that follow.
    Passes,
    /// More have to come before that can be said; none may pass yet.
    Undecided,
    /// They may not pass, and neither may anything that follows.
    Refused,
}

/// How the first bytes compare with what must be there.
fn compare(bytes: &[u8], expected: &[u8]) -> Verdict {
    let length = bytes.len().min(expected.len());
    match (bytes.get(..length) == expected.get(..length), length == expected.len()) {
        (false, _) => Verdict::Refused,
        (true, true) => Verdict::Passes,
        (true, false) => Verdict::Undecided,
    }
}

/// Whether a side begins with BitTorrent's handshake.
pub fn is_bittorrent(bytes: &[u8]) -> Verdict {
    compare(bytes, HANDSHAKE)
}

fn is_client_hello(bytes: &[u8]) -> Verdict {
    match bytes {
        [TLS_HANDSHAKE, 3, 0..=4, _, _, CLIENT_HELLO, ..] => Verdict::Passes,
        [TLS_HANDSHAKE] | [TLS_HANDSHAKE, 3] => Verdict::Undecided,
        [TLS_HANDSHAKE, 3, 0..=4, ..] if bytes.len() < TLS_START_BYTES => Verdict::Undecided,
        _ => Verdict::Refused,
    }
}

fn is_tls_answer(bytes: &[u8]) -> Verdict {
    match bytes {
        [TLS_HANDSHAKE | TLS_ALERT, 3, 0..=4, ..] => Verdict::Passes,
        [TLS_HANDSHAKE | TLS_ALERT] | [TLS_HANDSHAKE | TLS_ALERT, 3] => Verdict::Undecided,
        _ => Verdict::Refused,
    }
}

/// Watches one connection of an exit.
#[derive(Debug)]
pub struct Inspection {
    /// What the operator lets out (rules.rs).
    protocols: u8,
    port: u16,
    spoken: Option<Spoken>,
}

/// Whether a connection to this port can carry anything that may pass.
pub fn may_connect(protocols: u8, port: u16) -> Result<(), DropReason> {
    let may = protocols & (TCP | ENCRYPTED_TCP) != 0 || (protocols & HTTPS != 0 && port == HTTPS_PORT);
    may.then_some(()).ok_or(DropReason::StreamNotOffered)
}

impl Inspection {
    /// Creates an inspection of a connection to this port. `protocols` are bits (rules.rs); the port matters for TLS
    /// alone.
    pub fn new(protocols: u8, port: u16) -> Self {
        Self { protocols, port, spoken: None }
    }

    /// Judge what the client has sent so far; not called again once it passes.
    pub fn of_client(&mut self, bytes: &[u8]) -> Verdict {
        let mut candidates = [
            (self.protocols & TCP != 0, Spoken::BitTorrent, is_bittorrent(bytes)),
            (self.protocols & HTTPS != 0 && self.port == HTTPS_PORT, Spoken::Tls, is_client_hello(bytes)),
            (self.protocols & ENCRYPTED_TCP != 0, Spoken::Anything, Verdict::Passes),
        ]
        .into_iter()
        .filter(|(is_let_out, _, verdict)| *is_let_out && *verdict != Verdict::Refused);
        match candidates.next() {
            Some((_, spoken, Verdict::Passes)) => {
                self.spoken = Some(spoken);
                Verdict::Passes
            }
            Some(_) => Verdict::Undecided,
            None => Verdict::Refused,
        }
    }

    /// Whether what the client has sent passes.
    pub fn has_spoken(&self) -> bool {
        self.spoken.is_some()
    }

    /// How many bytes more the client is to send before it is led on: of BitTorrent, all up to the torrent's hash.
    pub fn lacks(&self, bytes: &[u8]) -> usize {
        match self.spoken {
            Some(Spoken::BitTorrent) => HASH_END.saturating_sub(bytes.len()),
            _ => 0,
        }
    }

    /// Judge what the other side has sent so far. Nothing of it passes before the client has spoken.
    pub fn of_answer(&self, bytes: &[u8]) -> Verdict {
        match self.spoken {
            None => Verdict::Undecided,
            Some(Spoken::BitTorrent) => is_bittorrent(bytes),
            Some(Spoken::Tls) => is_tls_answer(bytes),
            Some(Spoken::Anything) => Verdict::Passes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0];

    /// The verdict on each beginning of what a client sends, in order.
    fn verdicts(protocols: u8, port: u16, bytes: &[u8]) -> Vec<Verdict> {
        let mut inspection = Inspection::new(protocols, port);
        (1..=bytes.len()).map(|end| inspection.of_client(bytes.get(..end).unwrap_or_default())).collect()
    }

    #[test]
    fn bittorrent_passes_with_its_whole_handshake() {
        let verdicts = verdicts(TCP, 6881, HANDSHAKE);
        assert!(verdicts.iter().take(19).all(|verdict| *verdict == Verdict::Undecided));
        assert_eq!(verdicts.last(), Some(&Verdict::Passes));
    }

    #[test]
    fn the_other_side_must_answer_in_kind_and_after_the_client() {
        let mut inspection = Inspection::new(TCP | HTTPS, 443);
        assert_eq!(inspection.of_answer(HANDSHAKE), Verdict::Undecided);
        assert_eq!(inspection.of_client(HANDSHAKE), Verdict::Passes);
        assert_eq!(inspection.of_answer(b"220 mail.example"), Verdict::Refused);
        assert_eq!(inspection.of_answer(&HANDSHAKE[..7]), Verdict::Undecided);
        assert_eq!(inspection.of_answer(HANDSHAKE), Verdict::Passes);
        let mut inspection = Inspection::new(TCP | HTTPS, 443);
        assert_eq!(inspection.of_client(HELLO), Verdict::Passes);
        assert_eq!(inspection.of_answer(HANDSHAKE), Verdict::Refused);
        assert_eq!(inspection.of_answer(&[22, 3]), Verdict::Undecided);
        assert_eq!(inspection.of_answer(&[22, 3, 3, 0, 9, 2]), Verdict::Passes);
    }

    #[test]
    fn tls_passes_at_its_port_alone() {
        assert_eq!(verdicts(HTTPS, 443, HELLO).get(5), Some(&Verdict::Passes));
        assert_eq!(verdicts(HTTPS, 8443, HELLO).first(), Some(&Verdict::Refused));
        assert_eq!(verdicts(HTTPS, 443, b"GET / HTTP/1.1").first(), Some(&Verdict::Refused));
        assert_eq!(verdicts(TCP, 443, HELLO).first(), Some(&Verdict::Refused));
        assert_eq!(verdicts(HTTPS, 443, &[22, 3, 1, 2, 0, 2]).last(), Some(&Verdict::Refused));
    }

    #[test]
    fn what_looks_like_nothing_passes_where_the_operator_says_so() {
        assert_eq!(verdicts(TCP | HTTPS, 443, &[0xA5]), [Verdict::Refused]);
        assert_eq!(verdicts(ENCRYPTED_TCP, 6881, &[0xA5]), [Verdict::Passes]);
    }

    #[test]
    fn connections_that_could_carry_nothing_are_not_made() {
        assert!(may_connect(HTTPS, 443).is_ok());
        assert!(may_connect(TCP, 1).is_ok());
        assert_eq!(may_connect(HTTPS, 80), Err(DropReason::StreamNotOffered));
        assert_eq!(may_connect(0, 443), Err(DropReason::StreamNotOffered));
    }

    proptest! {
        #[test]
        fn more_bytes_never_undo_a_refusal(bytes in prop::collection::vec(any::<u8>(), 1..40), protocols: u8, https: bool) {
            let port = if https { 443 } else { 6881 };
            let verdicts = verdicts(protocols & (TCP | HTTPS), port, &bytes);
            let mut after = verdicts.iter().skip_while(|verdict| **verdict != Verdict::Refused);
            prop_assert!(after.all(|verdict| *verdict == Verdict::Refused));
        }
    }
}
