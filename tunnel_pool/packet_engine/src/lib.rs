//! The native packet path of one child of tunnel-pool. See docs/internals/datagrams.md, "The packet path".

#![deny(unreachable_pub)]

pub mod address;
pub mod arrivals;
pub mod cell;
pub mod clients;
pub mod core;
pub mod core_streams;
pub mod counters;
pub mod ends;
pub mod exit_from;
pub mod gate;
pub mod handshakes;
pub mod keys;
pub mod limits;
pub mod outbox;
pub mod policy;
pub mod probes;
pub mod replay;
pub mod routes;
pub mod rules;
pub mod sender;
pub mod shaper;
pub mod shared;
pub mod sticky;
pub mod strangers;
pub mod stream;
pub mod streams;
pub mod sys;
pub mod tcp_first;
pub mod utp;
pub mod worker;

#[cfg(feature = "python")]
mod python;

#[cfg(not(target_os = "linux"))]
compile_error!("the packet engine needs Linux; tunnel-pool runs its Python engine here");
