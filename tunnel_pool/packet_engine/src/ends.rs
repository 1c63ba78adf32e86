//! The addresses that stand for the other ends of end-to-end circuits, and for guests: IPv4 addresses with one port
//! (overlay/ground/end_to_end.py). Each is known by its number, which is drawn at random.
//!
//! Which child an address leads to is a secret of each lane, so that no peer can tell (socks5/steering.py, EndSteering).

use std::net::{Ipv4Addr, SocketAddr};

use ring::hmac;

use crate::address::Destination;
use crate::clients::Lane;

/// The port of these addresses (py-ipv8 tunnel.py, CIRCUIT_ID_PORT).
pub const END_PORT: u16 = 1024;
/// Length in bytes of the secret that a main process shares with its children (overlay/ground/end_to_end.py).
pub const SECRET_BYTES: usize = 32;
const STEERING: &[u8] = b"steering";
const SHIFT: u32 = 15;
const SLOT_SHIFT: u32 = 24;
const SLOT_BITS: u32 = 32 - SLOT_SHIFT;
/// First bytes of addresses that libtorrent takes for special ones, beside 0 and those from 224 on.
const SPECIAL: [u32; 8] = [10, 100, 127, 169, 172, 192, 198, 203];

/// What an address is known by, if it is one of these.
pub fn number_of_end(address: Destination<'_>) -> Option<u32> {
    match address {
        Destination::Ip(SocketAddr::V4(address)) if address.port() == END_PORT => Some(u32::from(*address.ip())),
        _ => None,
    }
}

/// The address that a number is known by.
pub fn address_of_end(number: u32) -> Destination<'static> {
    Destination::Ip(SocketAddr::from((Ipv4Addr::from(number), END_PORT)))
}

/// How addresses lead to the children of a lane.
pub struct Steering {
    first: u32,
    second: u32,
}

impl Steering {
    /// Derives a lane's steering from the secret, as overlay/ground/end_to_end.py (steering_of) does: the two
    /// multipliers are the first two words, made odd, of the HMAC-SHA256 of "steering" and the lane (4 bytes, big
    /// endian).
    pub fn of(secret: &[u8; SECRET_BYTES], lane: Lane) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = hmac::sign(&key, &[STEERING, &lane.to_be_bytes()].concat());
        let mut numbers = words(derived.as_ref()).map(|word| word | 1);
        Self { first: numbers.next().unwrap_or(1), second: numbers.next().unwrap_or(1) }
    }

    /// Returns the slot, 0 to 255, of the child that an address of this number leads to.
    pub fn slot_of(&self, number: u32) -> u32 {
        let mixed = number.wrapping_mul(self.first);
        (mixed ^ (mixed >> SHIFT)).wrapping_mul(self.second) >> SLOT_SHIFT
    }

    /// A number that leads to the child of this slot, another one for each 24 bits.
    pub fn number_for(&self, slot: u32, bits: u32) -> u32 {
        let mixed = ((slot << SLOT_SHIFT) | (bits >> SLOT_BITS)).wrapping_mul(inverse(self.second));
        (mixed ^ (mixed >> SHIFT) ^ (mixed >> (2 * SHIFT))).wrapping_mul(inverse(self.first))
    }
}

/// What an odd number times itself makes 1, by Newton's method: each step doubles the bits that are right.
fn inverse(odd: u32) -> u32 {
    (0..5).fold(odd, |found, _| found.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(found))))
}

/// The slot of the child that has a circuit (overlay/ground/config.py, SLOT_SHIFT).
pub fn slot_of_circuit(circuit_id: u32) -> u32 {
    circuit_id >> SLOT_SHIFT
}

/// Whether an address of this number may stand for anybody.
pub fn is_usable(number: u32) -> bool {
    let first = number >> SLOT_SHIFT;
    (1..224).contains(&first) && !SPECIAL.contains(&first)
}

/// The whole numbers of four bytes, big endian.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).filter_map(|chunk| chunk.first_chunk().copied().map(u32::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_side_derives_the_same() {
        // tests/overlay/test_end_to_end.py has these numbers, too.
        let steering = Steering::of(&[7; SECRET_BYTES], 0x0102_0301);
        assert_eq!((steering.first, steering.second), (FIRST, SECOND));
        assert_eq!(steering.slot_of(0x0102_0304), SLOT);
    }

    #[test]
    fn a_number_is_found_for_each_slot() {
        for lane in 0..50 {
            let steering = Steering::of(&[9; SECRET_BYTES], lane);
            for slot in 0..256 {
                let number = steering.number_for(slot, 0x0123_4567 ^ (slot << 9));
                assert_eq!(steering.slot_of(number), slot);
            }
        }
    }

    const FIRST: u32 = 0xd77d9f1f;
    const SECOND: u32 = 0x9d0341fd;
    const SLOT: u32 = 74;
}
