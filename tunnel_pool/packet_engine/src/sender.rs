//! Sends what the outbox holds, in as few system calls as it takes.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::counters::{Counters, DropReason};
use crate::outbox::{trains, Entry, Outgoing, Train, Via};
use crate::sys::TrainSender;

/// Sends the datagrams of the outbox as trains, and remembers the paths that have refused any.
pub struct Sender {
    /// Whether the kernel cuts trains.
    sends_trains: bool,
    train_sender: TrainSender,
    narrow: NarrowPaths,
    trains: Vec<Train>,
    turn: usize,
    /// Where neighbours write to, of a socket that has all of the machine's addresses.
    arrivals: Option<Arrivals>,
}

fn refuse(counters: &Counters, reason: DropReason, trains: &[Train]) {
    counters.add(reason, trains.iter().map(|train| train.entries.len() as u64).sum());
}

impl Sender {
    /// Creates a sender. Without `sends_trains`, it sends each datagram by itself. With `has_all_addresses`, what leaves by
    /// the tunnels' socket leaves from where its neighbour writes to, as far as that is known.
    pub fn new(sends_trains: bool, has_all_addresses: bool) -> Self {
        Self {
            sends_trains,
            train_sender: TrainSender::default(),
            narrow: NarrowPaths::default(),
            trains: Vec::new(),
            turn: 0,
            arrivals: has_all_addresses.then(Arrivals::default),
        }
    }

    /// Where packets of neighbours come in; None where they can come to one address alone.
    pub fn arrivals(&mut self) -> Option<&mut Arrivals> {
        self.arrivals.as_mut()
    }

    /// Send everything, or count why not; return the bytes that left by the tunnels' socket.
    /// The entries are sorted; `socket_for` knows the sockets.
    pub fn send_all(
        &mut self,
        outgoing: &Outgoing<'_>,
        counters: &Counters,
        socket_for: impl Fn(Via, SocketAddr) -> Option<RawFd>,
    ) -> usize {
        let mut bytes = 0;
        let mut batch = std::mem::take(&mut self.trains);
        batch.clear();
        let limit = |to: SocketAddr| if self.sends_trains { self.narrow.limit(to.ip()) } else { 0 };
        batch.extend(trains(outgoing.entries, limit));
        self.turn = self.turn.wrapping_add(1);
        let mut rest = batch.as_mut_slice();
        while let Some(first) = rest.first().and_then(|train| outgoing.entries.get(train.entries.start)) {
            let same_socket = |train: &&Train| {
                let entry = outgoing.entries.get(train.entries.start);
                entry.is_some_and(|entry| entry.via == first.via && entry.to.is_ipv4() == first.to.is_ipv4())
            };
            let number = rest.iter().take_while(same_socket).count();
            let (now, later) = rest.split_at_mut(number);
            // Begin with another destination in each round, so that a full socket does not always
            // drop the same ones; the order within a destination does not change.
            now.rotate_left(first_of_a_destination(outgoing.entries, now, self.turn));
            match socket_for(first.via, first.to) {
                Some(fd) => {
                    let sent = self.send(fd, outgoing, counters, now);
                    if first.via == Via::Tunnel {
                        bytes += sent;
                    }
                }
                None => refuse(counters, DropReason::UdpSendError, now),
            }
            rest = later;
        }
        self.trains = batch;
        bytes
    }

    /// Send trains by one socket; return the bytes that left.
    fn send(&mut self, fd: RawFd, outgoing: &Outgoing<'_>, counters: &Counters, mut batch: &[Train]) -> usize {
        let mut bytes = 0;
        while let Some((first, others)) = batch.split_first() {
            match self.train_sender.send(fd, outgoing, batch, self.arrivals.as_ref()) {
                Ok(sent) => {
                    let (left, rest) = batch.split_at(sent.clamp(1, batch.len()));
                    bytes += left.iter().map(|train| bytes_of(outgoing, train)).sum::<usize>();
                    batch = rest;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    refuse(counters, DropReason::UdpSendFull, batch);
                    return bytes;
                }
                // The address may be none of this machine any more.
                Err(_) if self.forgets_arrival(outgoing, first) => {}
                Err(error) => {
                    if first.entries.len() > 1 {
                        bytes += self.send_apart(fd, outgoing, counters, first, &error);
                    } else {
                        refuse(counters, DropReason::UdpSendError, std::slice::from_ref(first));
                    }
                    batch = others;
                }
            }
        }
        bytes
    }

    /// Let the kernel choose from where a train leaves; returns whether it could not before.
    fn forgets_arrival(&mut self, outgoing: &Outgoing<'_>, train: &Train) -> bool {
        let (Some(arrivals), Some(entry)) = (&mut self.arrivals, outgoing.entries.get(train.entries.start)) else {
            return false;
        };
        entry.via == Via::Tunnel && arrivals.forget(entry.to)
    }

    /// Send the datagrams of a train that was refused one by one: its segments are larger than the path takes, or
    /// its device can't cut. Return the bytes that left.
    fn send_apart(
        &mut self,
        fd: RawFd,
        outgoing: &Outgoing<'_>,
        counters: &Counters,
        train: &Train,
        error: &io::Error,
    ) -> usize {
        let narrower = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EMSGSIZE) => train.segment_bytes.saturating_sub(1),
            Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => 0,
            _ => {
                refuse(counters, DropReason::UdpSendError, std::slice::from_ref(train));
                return 0;
            }
        };
        if let Some(first) = outgoing.entries.get(train.entries.start) {
            self.narrow.learn(first.to.ip(), narrower);
        }
        let alone = |number| [Train { entries: number..number + 1, segment_bytes: train.segment_bytes }];
        train.entries.clone().map(|number| self.send(fd, outgoing, counters, &alone(number))).sum()
    }
}

/// All segments of a train are of one size, but the last, which may be shorter.
fn bytes_of(outgoing: &Outgoing<'_>, train: &Train) -> usize {
    let last = outgoing.entries.get(train.entries.end.wrapping_sub(1)).map_or(0, |entry| entry.at.len());
    train.entries.len().saturating_sub(1) * train.segment_bytes + last
}

/// Where a destination's trains begin, `turn` trains on or later; 0 when none begins there.
fn first_of_a_destination(entries: &[Entry], batch: &[Train], turn: usize) -> usize {
    let to = |train: &Train| entries.get(train.entries.start).map(|entry| entry.to);
    let from = turn % batch.len().max(1);
    let mut neighbours = batch.windows(2).enumerate().skip(from);
    let found = neighbours.find(|(_, pair)| matches!(pair, [one, next] if to(one) != to(next)));
    found.map_or(0, |(index, _)| index + 1)
}

/// Destinations whose path refused a train, for a while.
#[derive(Default)]
struct NarrowPaths(HashMap<IpAddr, (usize, Instant)>);

const MAX_NARROW_PATHS: usize = 4096;
const NARROW_FOR: Duration = Duration::from_secs(600);

impl NarrowPaths {
    /// How large segments may be.
    fn limit(&self, to: IpAddr) -> usize {
        match self.0.get(&to) {
            Some((limit, learnt)) if learnt.elapsed() < NARROW_FOR => *limit,
            _ => usize::from(u16::MAX),
        }
    }

    fn learn(&mut self, to: IpAddr, segment_bytes: usize) {
        if self.0.len() >= MAX_NARROW_PATHS {
            self.0.clear();
        }
        let limit = self.limit(to).min(segment_bytes);
        self.0.insert(to, (limit, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Storage;

    #[test]
    fn turning_keeps_each_destinations_order() {
        let entry = |port| Entry {
            via: Via::Tunnel,
            to: SocketAddr::from(([127, 0, 0, 1], port)),
            circuit_id: 0,
            storage: Storage::InArena,
            at: 0..1,
        };
        let ports = [1, 1, 1, 2, 2, 3];
        let entries = ports.map(entry);
        for turn in 0..20 {
            let mut batch: Vec<_> =
                (0..entries.len()).map(|at| Train { entries: at..at + 1, segment_bytes: 1 }).collect();
            let first = first_of_a_destination(&entries, &batch, turn);
            batch.rotate_left(first);
            for port in 1..=3 {
                let order = batch.iter().map(|train| train.entries.start).filter(|at| ports.get(*at) == Some(&port));
                assert!(order.is_sorted());
            }
        }
    }
}
