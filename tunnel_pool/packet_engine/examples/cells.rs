//! So many cells of one kind through a core, for a program that counts instructions.
//!
//! cargo run --release --example cells -- originate|relay|exit|back CELLS [BURDEN]
//!
//! Only `measured` is to be counted: valgrind --tool=callgrind --toggle-collect='*measured*'. With a
//! burden of 10, ten of a hundred cells are carried twice: what counts must see that.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use packet_engine::clients::Association;
use packet_engine::core::{Core, Settings};
use packet_engine::counters::Counters;
use packet_engine::keys::{Direction, HalfParts, SessionKeys, COUNTER_BYTES};
use packet_engine::outbox::trains;
use packet_engine::policy::ExitPolicy;
use packet_engine::routes::{Circuit, Exit, Purpose, Relay};

const PREFIX: [u8; 22] = *b"\x00\x02a community of 20 b.";
const HEADER_BYTES: usize = 29;
const OURS: u32 = 0x0100_0001;
const THEIRS: u32 = 0x0200_0002;
const PAYLOAD_BYTES: usize = 1300;
const BATCH: usize = 64;
const BIT_TORRENT: u16 = 2;

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Addresses {
    client: SocketAddr,
    first: SocketAddr,
    second: SocketAddr,
    outside: SocketAddr,
}

fn keys() -> Outcome<Arc<SessionKeys>> {
    let half = HalfParts { key: &[1; 32], salt: &[2; 4], counter: 0 };
    Ok(Arc::new(SessionKeys::new(&half, &half).ok_or("the keys have the wrong length")?))
}

fn core(to: &Addresses) -> Outcome<Core> {
    let settings = Settings {
        prefix: PREFIX,
        other_prefixes: Some(vec![]),
        max_relay_early: 8,
        no_crypto: vec![2, 3],
        policy: ExitPolicy { peer_flags: BIT_TORRENT, own_messages: false, allow_private: true },
        end_secret: [0; 32],
    };
    let mut core = Core::new(settings, Arc::new(Counters::default()));
    let circuit = Circuit { relay_early_count: 8.into(), ..Circuit::new(to.first, vec![keys()?], 1, Purpose::Data) };
    core.routes.set_circuit(OURS, circuit);
    core.routes.clients.add(1, Association { lane: 1, client: to.client });
    let exit = Exit { enabled: true, ..Exit::new(to.first, keys()?, Arc::default()) };
    core.routes.exits.insert(THEIRS, exit);
    Ok(core)
}

/// Another core, for an id can be one thing only.
fn relay(to: &Addresses) -> Outcome<Core> {
    let mut core = core(to)?;
    core.routes.circuits.clear();
    core.routes.exits.clear();
    for (from, next_id, direction) in [(OURS, THEIRS, Direction::Forward), (THEIRS, OURS, Direction::Backward)] {
        let relay = Relay {
            next_id,
            to: to.second,
            keys: keys()?,
            direction,
            rendezvous: false,
            relay_early_count: 1.into(),
            stats: Arc::default(),
        };
        core.routes.relays.insert(from, relay);
    }
    Ok(core)
}

/// Cells of a data message for a place outside, each sealed once under the keys that all here have.
fn sealed_cells(circuit_id: u32, number: usize) -> Outcome<Vec<Vec<u8>>> {
    let keys = keys()?;
    let message =
        [&[1, 1, 8, 8, 8, 8, 0, 80, 1, 0, 0, 0, 0, 0, 0][..], b"d1:", &[b'x'; PAYLOAD_BYTES - 4], b"e"].concat();
    let mut cells = Vec::with_capacity(number);
    for _ in 0..number {
        let mut cell = vec![0; HEADER_BYTES + COUNTER_BYTES + message.len() + 16];
        let (header, body) = cell.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&[&PREFIX[..], &[0], &circuit_id.to_be_bytes(), &[0, 0]].concat());
        let text = COUNTER_BYTES..COUNTER_BYTES + message.len();
        body.get_mut(text.clone()).ok_or("no room")?.copy_from_slice(&message);
        keys.seal(Direction::Forward, body, text).ok_or("no room for a layer")?;
        cells.push(cell);
    }
    Ok(cells)
}

enum Kind {
    Originate,
    Receive,
    Back,
}

/// All in batches, as the engine's thread has it: what leaves is sorted and cut into trains.
#[inline(never)]
fn measured(core: &mut Core, kind: &Kind, to: &Addresses, datagrams: &mut [Vec<u8>]) -> usize {
    let mut left = 0;
    for batch in datagrams.chunks_mut(BATCH) {
        for datagram in batch.iter_mut() {
            match kind {
                Kind::Originate => core.client_received(1, to.client, datagram),
                Kind::Receive => core.tunnel_received(to.first, datagram, 0),
                Kind::Back => core.exit_received(THEIRS, to.outside, datagram),
            }
        }
        let mail = core.gate.outbox.sorted(&[]);
        left += trains(mail.entries, |_| usize::from(u16::MAX)).map(|train| train.entries.len()).sum::<usize>();
        core.gate.outbox.clear();
    }
    left
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().ok_or("originate, relay, exit or back?")?;
    let number: usize = arguments.next().ok_or("how many cells?")?.parse()?;
    let burden: usize = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let carried = number + number * burden / 100;
    let to = Addresses {
        client: "127.0.0.1:5".parse()?,
        first: "198.51.100.1:1".parse()?,
        second: "198.51.100.2:2".parse()?,
        outside: "8.8.8.8:80".parse()?,
    };
    let payload = [b"d1:", &[b'x'; PAYLOAD_BYTES - 4][..], b"e"].concat();
    let request = [&[0, 0, 0, 1, 8, 8, 8, 8, 0, 80][..], &payload].concat();
    let (mut core, kind, mut datagrams) = match kind.as_str() {
        "originate" => (core(&to)?, Kind::Originate, vec![request; carried]),
        "relay" => (relay(&to)?, Kind::Receive, sealed_cells(OURS, carried)?),
        "exit" => (core(&to)?, Kind::Receive, sealed_cells(THEIRS, carried)?),
        "back" => (core(&to)?, Kind::Back, vec![payload; carried]),
        other => return Err(format!("{other:?} is none of originate, relay, exit, back").into()),
    };
    core.exit_send(THEIRS, to.outside, b"d1:y1:qe"); // who answers is no stranger
    core.gate.outbox.clear();
    let left = measured(&mut core, &kind, &to, &mut datagrams);
    if left != carried {
        return Err(format!("{left} of {carried} cells left").into());
    }
    println!("{{\"cells\": {number}}}");
    Ok(())
}
