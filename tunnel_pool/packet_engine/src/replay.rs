//! A sliding window over nonce counters (RFC 6479): each counter is accepted once, in any order.

const WORD_BITS: u64 = 64;
const WORDS: usize = 128;

/// How far a counter may lag behind the newest one. One word of the bitmap is always being reused.
pub const WINDOW: u64 = (WORDS as u64 - 1) * WORD_BITS;

/// 1 KiB per direction and key.
#[derive(Debug)]
pub struct ReplayWindow {
    newest: u64,
    bitmap: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { newest: 0, bitmap: [0; WORDS] }
    }
}

fn place(counter: u64) -> (usize, u64) {
    let word = (counter / WORD_BITS) as usize % WORDS;
    (word, 1 << (counter % WORD_BITS))
}

impl ReplayWindow {
    /// Whether the counter is new. Ask before decrypting; `accept` only what was authentic.
    pub fn is_new(&self, counter: u64) -> bool {
        if counter > self.newest {
            return true;
        }
        if self.newest - counter > WINDOW {
            return false;
        }
        let (word, bit) = place(counter);
        self.bitmap.get(word).is_some_and(|bits| bits & bit == 0)
    }

    /// Remember an authentic counter for which `is_new` said yes.
    pub fn accept(&mut self, counter: u64) {
        if counter > self.newest {
            let fresh = counter / WORD_BITS - self.newest / WORD_BITS;
            for step in 1..=fresh.min(WORDS as u64) {
                let (word, _) = place(self.newest.wrapping_add(step * WORD_BITS));
                if let Some(bits) = self.bitmap.get_mut(word) {
                    *bits = 0;
                }
            }
            self.newest = counter;
        }
        let (word, bit) = place(counter);
        if let Some(bits) = self.bitmap.get_mut(word) {
            *bits |= bit;
        }
    }
}

/// Up to this counter, two different texts may come under one: ipv8-rust-tunnels begins anew when
/// an exit becomes a relay.
const EARLY: u64 = 32;
const MAX_EARLY_TAGS: usize = 128;

/// What one direction of a hop's keys has received.
///
/// A replayed cell is the same to the last bit, so early cells are told apart by their tags, and
/// all others by their counters.
#[derive(Debug, Default)]
pub struct Received {
    window: ReplayWindow,
    early_tags: Vec<[u8; 16]>,
}

impl Received {
    /// Whether the cell is new. Ask before decrypting; `accept` only what was authentic.
    pub fn is_new(&self, counter: u64, tag: &[u8; 16]) -> bool {
        if counter <= EARLY && self.early_tags.len() < MAX_EARLY_TAGS {
            !self.early_tags.contains(tag)
        } else {
            self.window.is_new(counter)
        }
    }

    /// Remembers an authentic cell for which `is_new` returned true.
    pub fn accept(&mut self, counter: u64, tag: &[u8; 16]) {
        if counter <= EARLY && self.early_tags.len() < MAX_EARLY_TAGS {
            self.early_tags.push(*tag);
        }
        self.window.accept(counter);
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn take(window: &mut ReplayWindow, counter: u64) -> bool {
        let new = window.is_new(counter);
        if new {
            window.accept(counter);
        }
        new
    }

    #[test]
    fn edges_of_the_window() {
        let mut window = ReplayWindow::default();
        assert!(take(&mut window, WINDOW + 10));
        assert!(take(&mut window, 10));
        assert!(!take(&mut window, 10));
        assert!(!take(&mut window, 9));
        assert!(take(&mut window, u64::MAX));
        assert!(!take(&mut window, WINDOW + 11));
        assert!(take(&mut window, u64::MAX - WINDOW));
        assert!(!take(&mut window, u64::MAX));
    }

    #[test]
    fn early_cells_are_known_by_their_tags_and_their_number_is_bounded() {
        let mut received = Received::default();
        let tag = |number: u16| {
            let mut tag = [0; 16];
            tag[..2].copy_from_slice(&number.to_be_bytes());
            tag
        };
        assert!(received.is_new(2, &tag(1)));
        received.accept(2, &tag(1));
        assert!(!received.is_new(2, &tag(1)));
        assert!(received.is_new(2, &tag(2)));
        for number in 0..2 * MAX_EARLY_TAGS as u16 {
            if received.is_new(2, &tag(100 + number)) {
                received.accept(2, &tag(100 + number));
            }
        }
        assert_eq!(received.early_tags.len(), MAX_EARLY_TAGS);
        received.accept(EARLY + 1, &tag(3));
        assert!(!received.is_new(EARLY + 1, &tag(4)));
    }

    proptest! {
        #[test]
        fn once_each_and_never_refused_within_the_window(counters in prop::collection::vec(0u64..20_000, 1..2000)) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut newest = 0;
            for counter in counters {
                let taken = take(&mut window, counter);
                if newest > counter + WINDOW {
                    prop_assert!(!taken);
                } else {
                    prop_assert_eq!(taken, seen.insert(counter));
                }
                newest = newest.max(counter);
            }
        }
    }
}
