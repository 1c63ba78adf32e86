//! One hop's session keys: ChaCha20-Poly1305 with an explicit counter, in place.
//!
//! A sealed layer (py-ipv8's SessionKeys.encrypt_str):
//!
//! ```text
//! 0                 8
//! +-----------------+----------------------+-----------+
//! | counter, big    | ciphertext           | tag (16)  |
//! | endian          |                      |           |
//! +-----------------+----------------------+-----------+
//! nonce = salt (4) + counter (8); no associated data
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, CHACHA20_POLY1305, NONCE_LEN};

use crate::counters::DropReason;
use crate::replay::Received;

/// Length in bytes of the counter in front of a layer's ciphertext.
pub const COUNTER_BYTES: usize = 8;
/// Length in bytes of Poly1305's tag behind a layer's ciphertext.
pub const TAG_BYTES: usize = 16;
/// What a layer adds to a message.
pub const LAYER_BYTES: usize = COUNTER_BYTES + TAG_BYTES;
/// Length in bytes of a key of ChaCha20-Poly1305 (RFC 8439).
pub const KEY_BYTES: usize = 32;
/// Length in bytes of the constant first part of the nonce.
pub const SALT_BYTES: usize = 4;

/// The direction that a cell travels in; each has its own half of a hop's keys (py-ipv8 tunnel.py, FORWARD and
/// BACKWARD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Away from the circuit's originator; between the ends of an end-to-end circuit, from the seeder to the
    /// downloader.
    Forward,
    /// Towards the circuit's originator; between the ends of an end-to-end circuit, from the downloader to the seeder.
    Backward,
}

impl Direction {
    /// The direction of what comes back.
    pub fn opposite(self) -> Self {
        match self {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        }
    }
}

/// Key, salt and last counter of one direction, as py-ipv8 derived them.
pub struct HalfParts<'a> {
    /// The key of ChaCha20-Poly1305, `KEY_BYTES` long.
    pub key: &'a [u8],
    /// The constant part of the nonce, `SALT_BYTES` long.
    pub salt: &'a [u8],
    /// The last counter that was used for sending; the next layer gets the one after it.
    pub counter: u64,
}

struct Half {
    key: LessSafeKey,
    salt: [u8; SALT_BYTES],
    sent: AtomicU64,
    received: Mutex<Received>,
}

impl Half {
    /// None when key or salt have the wrong length.
    fn new(parts: &HalfParts<'_>) -> Option<Self> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, parts.key).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            salt: parts.salt.try_into().ok()?,
            sent: AtomicU64::new(parts.counter),
            received: Mutex::default(),
        })
    }

    fn nonce(&self, counter: [u8; COUNTER_BYTES]) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        let (salt, explicit) = nonce.split_at_mut(SALT_BYTES);
        salt.copy_from_slice(&self.salt);
        explicit.copy_from_slice(&counter);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Shared by the routes of one hop, so that its counters go on when an exit becomes a relay.
pub struct SessionKeys {
    forward: Half,
    backward: Half,
}

impl SessionKeys {
    /// None when a key or a salt has the wrong length.
    pub fn new(forward: &HalfParts<'_>, backward: &HalfParts<'_>) -> Option<Self> {
        Some(Self { forward: Half::new(forward)?, backward: Half::new(backward)? })
    }

    fn half(&self, direction: Direction) -> &Half {
        match direction {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        }
    }

    /// Seal `buffer[message]` where it lies; returns the range of the layer around it.
    /// None when there is no room for the layer.
    pub fn seal(&self, direction: Direction, buffer: &mut [u8], message: Range<usize>) -> Option<Range<usize>> {
        let half = self.half(direction);
        let layer = message.start.checked_sub(COUNTER_BYTES)?..message.end.checked_add(TAG_BYTES)?;
        let whole = buffer.get_mut(layer.clone())?;
        let (explicit, rest) = whole.split_at_mut_checked(COUNTER_BYTES)?;
        let (text, tag_place) = rest.split_at_mut_checked(message.len())?;
        let counter = (half.sent.fetch_add(1, Ordering::Relaxed) + 1).to_be_bytes();
        let tag = half.key.seal_in_place_separate_tag(half.nonce(counter), Aad::empty(), text).ok()?;
        explicit.copy_from_slice(&counter);
        tag_place.copy_from_slice(tag.as_ref());
        Some(layer)
    }

    /// Open a layer where it lies; returns the range of its content. A counter is accepted once.
    pub fn open(
        &self,
        direction: Direction,
        buffer: &mut [u8],
        layer: Range<usize>,
    ) -> Result<Range<usize>, DropReason> {
        let half = self.half(direction);
        let whole = buffer.get_mut(layer.clone()).ok_or(DropReason::CellNotDecrypted)?;
        let (explicit, sealed) = whole.split_first_chunk_mut::<COUNTER_BYTES>().ok_or(DropReason::CellNotDecrypted)?;
        let counter = u64::from_be_bytes(*explicit);
        let tag = *sealed.last_chunk::<TAG_BYTES>().ok_or(DropReason::CellNotDecrypted)?;
        let mut received = half.received.lock().unwrap_or_else(PoisonError::into_inner);
        if !received.is_new(counter, &tag) {
            return Err(DropReason::CellReplayed);
        }
        let text = half
            .key
            .open_in_place(half.nonce(*explicit), Aad::empty(), sealed)
            .map_err(|_| DropReason::CellNotDecrypted)?;
        received.accept(counter, &tag);
        let start = layer.start + COUNTER_BYTES;
        Ok(start..start + text.len())
    }
}

/// The unit tests.
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
pub(crate) mod tests {
    use super::*;

    /// Returns keys that depend on the seed alone, so that both ends in a test can have the same ones.
    pub(crate) fn keys(seed: u8) -> SessionKeys {
        let half = |offset: u8| ([seed.wrapping_add(offset); KEY_BYTES], [seed ^ offset; SALT_BYTES]);
        let ((fk, fs), (bk, bs)) = (half(1), half(2));
        SessionKeys::new(&HalfParts { key: &fk, salt: &fs, counter: 0 }, &HalfParts { key: &bk, salt: &bs, counter: 0 })
            .unwrap()
    }

    #[test]
    fn seals_and_opens_once() {
        let (ours, theirs) = (keys(1), keys(1));
        let mut buffer = vec![0; 100];
        buffer[20..25].copy_from_slice(b"hello");
        let layer = ours.seal(Direction::Forward, &mut buffer, 20..25).unwrap();
        assert_eq!(layer, 12..41);
        let replay = buffer.clone();
        let text = theirs.open(Direction::Forward, &mut buffer, layer.clone()).unwrap();
        assert_eq!(&buffer[text], b"hello");
        let mut buffer = replay;
        assert_eq!(theirs.open(Direction::Forward, &mut buffer, layer), Err(DropReason::CellReplayed));
    }

    #[test]
    fn forged_cells_do_not_move_the_window() {
        let (ours, theirs) = (keys(1), keys(1));
        let mut forged = vec![0xff; 60];
        assert_eq!(theirs.open(Direction::Forward, &mut forged, 0..60), Err(DropReason::CellNotDecrypted));
        let mut buffer = vec![0; 60];
        let layer = ours.seal(Direction::Forward, &mut buffer, 8..20).unwrap();
        assert!(theirs.open(Direction::Forward, &mut buffer, layer).is_ok());
    }

    #[test]
    fn no_room_is_no_panic() {
        let keys = keys(1);
        assert_eq!(keys.seal(Direction::Forward, &mut [0; 30], 7..10), None);
        assert_eq!(keys.seal(Direction::Forward, &mut [0; 30], 8..15), None);
        for size in 0..24 {
            let mut short = vec![0; size];
            assert!(keys.open(Direction::Backward, &mut short, 0..size).is_err());
        }
        assert!(keys.open(Direction::Backward, &mut [0; 30], 10..50).is_err());
    }
}
