//! What a cell costs at least: cryptography once, and its share of batched system calls.
//!
//! cargo run --release --example floor
//!
//! The engine's own figures are those of `tunnel-pool bench relay exit back` and, where the
//! neighbours send no trains, `relay-plain exit-plain back-plain`.

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use packet_engine::keys::{Direction, HalfParts, SessionKeys, COUNTER_BYTES};
use packet_engine::outbox::{trains, Outbox, Train, Via};
use packet_engine::sys::{bind_udp, enable_gro, Inbox, TrainSender};

const MESSAGE_BYTES: usize = 1300;
const CELL_BYTES: usize = 1369; // header, addresses and one layer around it
const TRAIN: usize = 40;
const ROUNDS: usize = 5_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn keys() -> Outcome<SessionKeys> {
    let half = HalfParts { key: &[1; 32], salt: &[2; 4], counter: 0 };
    SessionKeys::new(&half, &half).ok_or_else(|| "the keys have the wrong length".into())
}

fn microseconds(start: Instant, number: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / number as f64
}

fn measure_seal() -> Outcome<f64> {
    let keys = keys()?;
    let mut buffer = vec![0; MESSAGE_BYTES + 64];
    let start = Instant::now();
    for _ in 0..ROUNDS * TRAIN {
        keys.seal(Direction::Forward, &mut buffer, COUNTER_BYTES..COUNTER_BYTES + MESSAGE_BYTES)
            .ok_or("no room for a layer")?;
    }
    Ok(microseconds(start, ROUNDS * TRAIN))
}

/// Both sides of the socket pair: the kernel's work and the copies, per datagram.
fn measure_socket(send_trains: bool, receive_trains: bool) -> Outcome<f64> {
    let loopback: SocketAddr = "127.0.0.1:0".parse()?;
    let (from, to): (OwnedFd, OwnedFd) = (bind_udp(loopback, None)?, bind_udp(loopback, None)?);
    if receive_trains && !enable_gro(&to) {
        return Err("this kernel has no UDP_GRO".into());
    }
    let address = std::net::UdpSocket::from(to.try_clone()?).local_addr()?;
    let (mut train_sender, mut inbox, mut outbox) = (TrainSender::default(), Inbox::default(), Outbox::default());
    for _ in 0..TRAIN {
        outbox.push(Via::Tunnel, address, 7, 0..CELL_BYTES);
    }
    let max_segment = if send_trains { usize::from(u16::MAX) } else { 0 };
    let mail = outbox.sorted(&[]);
    let batch: Vec<Train> = trains(mail.entries, |_| max_segment).collect();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let mut rest = batch.as_slice();
        while !rest.is_empty() {
            let sent = train_sender.send(from.as_raw_fd(), &mail, rest, None)?;
            rest = rest.get(sent..).unwrap_or(&[]);
        }
        let mut bytes = 0;
        while bytes < TRAIN * CELL_BYTES {
            for index in 0..inbox.receive(to.as_raw_fd())? {
                bytes += inbox.message(index).map_or(0, |(_, datagrams)| datagrams.map(|at| at.len()).sum());
            }
        }
    }
    Ok(microseconds(start, ROUNDS * TRAIN))
}

fn main() -> Outcome<()> {
    let seal = measure_seal()?;
    let both = measure_socket(true, true)?;
    let towards_plain = measure_socket(true, false)?;
    let plain = measure_socket(false, false)?;
    println!("per cell of {CELL_BYTES} bytes, one core, microseconds");
    println!("  cryptography, one layer           {seal:5.2}");
    println!("  sent and received, trains of {TRAIN}   {both:5.2}");
    println!("  sent as trains, received singly   {towards_plain:5.2}");
    println!("  sent and received singly          {plain:5.2}");
    println!("floor of a node between neighbours that send trains: {:.2}", seal + both);
    println!(
        "floor between neighbours that don't, the receiving half of the singles: {:.2}",
        seal + both / 2.0 + plain / 2.0
    );
    Ok(())
}
