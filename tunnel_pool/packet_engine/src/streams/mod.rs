//! Streams in circuits: bytes in order and whole, between a client and the last node of its circuit, which speaks TCP to
//! the world. docs/WIRE.md has the bytes.
//!
//! `quic` carries them, without encryption of its own (`plaintext`), in messages of one or two cells (`parts`), as fast as
//! `delay_target` lets it. A stream begins with what `opening` reads; at both ends `bridge` joins it with a TCP
//! connection, which `service` has among its `entries`. An exit judges what is asked by `dials` and what passes by
//! `inspection`; `error` says why nothing came of it. Streams that an exit opens are for those who call from outside
//! (`doors`); at our end, what the other end opened is a guest (`guests`).

pub mod bridge;
pub mod delay_target;
pub mod dials;
pub mod doors;
pub mod entries;
pub mod error;
pub mod guests;
pub mod inspection;
pub mod opening;
pub mod parts;
pub mod plaintext;
pub mod quic;
pub mod service;
