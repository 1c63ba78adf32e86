//! The engine's thread: it owns the sockets and the tables, and does all the I/O around `Core`.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::{Core, Event, Settings};
use crate::counters::{Counters, Drop};
use crate::outbox::{trains, Entry, Train, Via};
use crate::routes::{Association, Circuit, Exit, Relay};
use crate::stream::FrameReader;
use crate::sys::{bind_udp, enable_gro, has_gso, set_timer_slack, Bell, Epoll, Inbox, Postman};

/// What Python asks of the engine; carried out in the order asked.
pub enum Command {
    Configure(Settings),
    SendPacket {
        to: SocketAddr,
        packet: Vec<u8>,
    },
    SendCell {
        to: SocketAddr,
        circuit_id: u32,
        plaintext: bool,
        message: Vec<u8>,
    },
    ExitSend {
        circuit_id: u32,
        to: SocketAddr,
        payload: Vec<u8>,
    },
    SetCircuit(u32, Circuit),
    RemoveCircuit(u32),
    SetRelay(u32, Relay),
    RemoveRelay(u32),
    SetExit(u32, Exit),
    RemoveExit(u32),
    AttachStream {
        input: OwnedFd,
        output: OwnedFd,
    },
    AddAssociation {
        id: u32,
        socket: OwnedFd,
        association: Association,
    },
    RemoveAssociation(u32),
    /// What the client of an association sent, but came another way.
    ClientDatagram {
        association: u32,
        datagram: Vec<u8>,
    },
    Stop,
}

/// Between the engine's thread and Python's.
pub struct Shared {
    pub counters: Arc<Counters>,
    /// Nobody carries commands out any more.
    ended: AtomicBool,
    commands: Mutex<Vec<Command>>,
    notices: Mutex<Notices>,
    /// Wakes the engine.
    wake: Bell,
    /// Wakes Python.
    pub bell: Bell,
}

/// What Python hears.
pub enum Notice {
    Event(Event),
    /// The data stream is over, or broken.
    StreamLost(String),
    /// The engine can't go on.
    Failed(String),
}

/// Packets wait for Python up to so many bytes, whoever sent them; more are dropped and counted.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// What a packet costs beside its bytes.
const PACKET_OVERHEAD_BYTES: usize = 1 << 10;

#[derive(Default)]
struct Notices {
    queue: VecDeque<Notice>,
    packet_bytes: usize,
}

impl Notice {
    fn packet_bytes(&self) -> usize {
        match self {
            Notice::Event(Event::Packet { bytes, .. }) => bytes.len() + PACKET_OVERHEAD_BYTES,
            _ => 0,
        }
    }
}

/// Waking up costs as much as several datagrams. When they come one after the other, the engine
/// lets some gather, as network cards do (interrupt moderation); an idle one answers at once.
const PAUSE: Duration = Duration::from_micros(200);
const BUSY_WAIT: Duration = Duration::from_micros(100);
const WORTHWHILE: usize = 32;
const TIMER_SLACK_NS: u64 = 1_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            counters: Arc::default(),
            ended: AtomicBool::new(false),
            commands: Mutex::default(),
            notices: Mutex::default(),
            wake: Bell::new()?,
            bell: Bell::new()?,
        })
    }

    /// After the engine's thread has ended, commands are thrown away.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        lock(&self.commands).clear();
    }

    pub fn command(&self, command: Command) {
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let first = {
            let mut commands = lock(&self.commands);
            commands.push(command);
            commands.len() == 1
        };
        if first {
            self.wake.ring();
        }
    }

    /// The oldest notices, `limit` at most; the bell goes on ringing when there are more.
    pub fn take_notices(&self, limit: usize) -> Vec<Notice> {
        self.bell.silence();
        let (taken, left) = {
            let mut notices = lock(&self.notices);
            let number = notices.queue.len().min(limit);
            let taken: Vec<_> = notices.queue.drain(..number).collect();
            notices.packet_bytes -= taken.iter().map(Notice::packet_bytes).sum::<usize>();
            (taken, !notices.queue.is_empty())
        };
        if left {
            self.bell.ring();
        }
        taken
    }

    pub fn notify(&self, new: impl Iterator<Item = Notice>) {
        let refused = {
            let mut notices = lock(&self.notices);
            let mut refused = 0;
            for notice in new {
                let bytes = notice.packet_bytes();
                if bytes > 0 && notices.packet_bytes + bytes > MAX_WAITING_BYTES {
                    refused += 1;
                } else {
                    notices.packet_bytes += bytes;
                    notices.queue.push_back(notice);
                }
            }
            refused
        };
        self.counters.add(Drop::PythonQueueFull, refused);
        self.bell.ring();
    }
}

#[derive(Clone, Copy)]
enum Token {
    Wake,
    Tunnel,
    Exit4(u32),
    Exit6(u32),
    Client(u32),
    StreamIn,
    StreamOut,
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, id) = match self {
            Token::Wake => (0, 0),
            Token::Tunnel => (1, 0),
            Token::Exit4(id) => (2, id),
            Token::Exit6(id) => (3, id),
            Token::Client(id) => (4, id),
            Token::StreamIn => (5, 0),
            Token::StreamOut => (6, 0),
        };
        kind << 32 | u64::from(id)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let id = packed as u32;
        Some(match packed >> 32 {
            0 => Token::Wake,
            1 => Token::Tunnel,
            2 => Token::Exit4(id),
            3 => Token::Exit6(id),
            4 => Token::Client(id),
            5 => Token::StreamIn,
            6 => Token::StreamOut,
            _ => return None,
        })
    }
}

struct ExitSockets {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

struct StreamOut {
    file: File,
    waiting: bool,
}

pub struct Worker {
    core: Core,
    shared: Arc<Shared>,
    epoll: Epoll,
    /// Taken out while a batch is worked on.
    inbox: Option<Inbox>,
    postman: Postman,
    tunnel: OwnedFd,
    exit_ip: IpAddr,
    exits: HashMap<u32, ExitSockets>,
    clients: HashMap<u32, OwnedFd>,
    stream_in: Option<FrameReader>,
    stream_out: Option<StreamOut>,
    /// Whether the kernel cuts trains.
    sends_trains: bool,
    narrow: NarrowPaths,
    trains: Vec<Train>,
    turn: usize,
    /// Datagrams and frames of this round.
    served: usize,
    stopped: bool,
}

impl Worker {
    /// `tunnel` is a bound, non-blocking socket; exits leave from `exit_ip`.
    pub fn new(
        tunnel: OwnedFd,
        exit_ip: IpAddr,
        settings: Settings,
        may_send_trains: bool,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add_reader(shared.wake.as_raw_fd(), Token::Wake.pack())?;
        epoll.add_reader(tunnel.as_raw_fd(), Token::Tunnel.pack())?;
        enable_gro(tunnel.as_raw_fd());
        let sends_trains = may_send_trains && has_gso(tunnel.as_raw_fd());
        Ok(Self {
            core: Core::new(settings, shared.counters.clone()),
            shared,
            epoll,
            inbox: Some(Inbox::default()),
            postman: Postman::default(),
            tunnel,
            exit_ip,
            exits: HashMap::new(),
            clients: HashMap::new(),
            stream_in: None,
            stream_out: None,
            sends_trains,
            narrow: NarrowPaths::default(),
            trains: Vec::new(),
            turn: 0,
            served: 0,
            stopped: false,
        })
    }

    /// Work until told to stop.
    pub fn run(&mut self) -> io::Result<()> {
        set_timer_slack(TIMER_SLACK_NS);
        let mut ready = Vec::new();
        while !self.stopped {
            ready.clear();
            self.served = 0;
            let waiting = Instant::now();
            match self.epoll.wait() {
                Ok(tokens) => ready.extend(tokens.filter_map(Token::unpack)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let waited = waiting.elapsed();
            self.core.now_ms = now_ms();
            for token in &ready {
                self.serve(*token);
            }
            self.flush();
            self.flush_stream();
            if !self.core.events.is_empty() {
                self.shared.notify(self.core.take_events().map(Notice::Event));
            }
            if (1..WORTHWHILE).contains(&self.served) && waited < BUSY_WAIT {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    fn serve(&mut self, token: Token) {
        match token {
            Token::Wake => {
                self.shared.wake.silence();
                let commands = std::mem::take(&mut *lock(&self.shared.commands));
                for command in commands {
                    self.obey(command);
                }
            }
            Token::Tunnel => {
                self.receive(self.tunnel.as_raw_fd(), |core, from, bytes| core.tunnel_received(from, bytes));
            }
            Token::Exit4(id) | Token::Exit6(id) => {
                let sockets = self.exits.get(&id);
                let socket = match token {
                    Token::Exit4(_) => sockets.and_then(|sockets| sockets.v4.as_ref()),
                    _ => sockets.and_then(|sockets| sockets.v6.as_ref()),
                };
                if let Some(fd) = socket.map(AsRawFd::as_raw_fd) {
                    self.receive(fd, |core, from, bytes| core.exit_received(id, from, bytes));
                }
            }
            Token::Client(id) => {
                if let Some(fd) = self.clients.get(&id).map(AsRawFd::as_raw_fd) {
                    self.receive(fd, |core, from, bytes| core.client_received(id, from, bytes));
                }
            }
            Token::StreamIn => self.read_stream(),
            Token::StreamOut => {
                if let Some(out) = &mut self.stream_out {
                    self.epoll.remove(out.file.as_raw_fd());
                    out.waiting = false;
                }
            }
        }
    }

    /// One batch from a socket, each datagram to `handle`.
    fn receive(&mut self, fd: RawFd, handle: impl Fn(&mut Core, SocketAddr, &mut [u8])) {
        let Some(mut inbox) = self.inbox.take() else { return };
        match inbox.receive(fd) {
            Ok(count) => {
                for index in 0..count {
                    let Some((from, segment, message)) = inbox.message(index) else { continue };
                    for datagram in message.chunks_mut(segment.max(1)) {
                        self.served += 1;
                        self.make_room();
                        handle(&mut self.core, from, datagram);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.core.counters.count(Drop::UdpReceiveError),
        }
        self.inbox = Some(inbox);
    }

    fn make_room(&mut self) {
        if !self.core.out.has_room() {
            self.flush();
        }
    }

    fn obey(&mut self, command: Command) {
        self.make_room();
        let core = &mut self.core;
        match command {
            Command::Configure(settings) => core.settings = settings,
            Command::SendPacket { to, packet } => core.send_packet(to, &packet),
            Command::SendCell { to, circuit_id, plaintext, message } => {
                core.send_cell(to, circuit_id, plaintext, &message);
            }
            Command::ExitSend { circuit_id, to, payload } => core.exit_send(circuit_id, to, &payload),
            Command::SetCircuit(id, circuit) => {
                if let Some(before) = core.routes.circuits.get(&id) {
                    circuit.relay_early_count.set(before.relay_early_count.get());
                }
                core.routes.circuits.insert(id, circuit);
            }
            Command::RemoveCircuit(id) => {
                if let Some((hops, destinations)) = core.routes.remove_circuit(id) {
                    if !destinations.is_empty() {
                        core.events.push(Event::Orphans { hops, destinations });
                    }
                }
            }
            Command::SetRelay(id, relay) => {
                if let Some(before) = core.routes.relays.get(&id) {
                    relay.relay_early_count.set(before.relay_early_count.get());
                }
                core.routes.relays.insert(id, relay);
            }
            Command::RemoveRelay(id) => {
                core.routes.relays.remove(&id);
            }
            Command::SetExit(id, mut exit) => {
                exit.enabled = self.exits.contains_key(&id);
                core.routes.exits.insert(id, exit);
            }
            Command::RemoveExit(id) => {
                self.flush();
                self.core.routes.exits.remove(&id);
                self.exits.remove(&id);
            }
            Command::AttachStream { input, output } => self.attach_stream(input, output),
            Command::AddAssociation { id, socket, association } => {
                self.remove_association(id);
                enable_gro(socket.as_raw_fd());
                if self.epoll.add_reader(socket.as_raw_fd(), Token::Client(id).pack()).is_ok() {
                    self.clients.insert(id, socket);
                    self.core.routes.associations.push((id, association));
                }
            }
            Command::RemoveAssociation(id) => self.remove_association(id),
            Command::ClientDatagram { association, datagram } => {
                if let Some(client) = core.routes.association(association).map(|known| known.client) {
                    core.client_received(association, client, &datagram);
                }
            }
            Command::Stop => self.stopped = true,
        }
    }

    fn remove_association(&mut self, id: u32) {
        self.flush();
        self.core.routes.associations.retain(|(other, _)| *other != id);
        if let Some(socket) = self.clients.remove(&id) {
            // The main process has the same open file, so that closing ours would not end the reports.
            self.epoll.remove(socket.as_raw_fd());
        }
    }

    // Out

    fn open_exits(&mut self) {
        for id in std::mem::take(&mut self.core.to_enable) {
            let both = self.exit_ip.is_unspecified();
            let v6 = |worker: &Self| {
                worker.open_exit(Ipv6Addr::UNSPECIFIED.into(), Token::Exit6(id), Drop::ExitNoIpv6Socket)
            };
            let sockets = ExitSockets {
                v4: self.open_exit(self.exit_ip, Token::Exit4(id), Drop::ExitNoIpv4Socket),
                v6: both.then(|| v6(self)).flatten(),
            };
            match self.core.routes.exits.get_mut(&id) {
                // The next datagram tries again.
                Some(exit) if sockets.v4.is_none() => exit.enabled = false,
                Some(_) => drop(self.exits.insert(id, sockets)),
                None => {}
            }
        }
    }

    fn open_exit(&self, ip: IpAddr, token: Token, reason: Drop) -> Option<OwnedFd> {
        let opened = bind_udp(SocketAddr::new(ip, 0)).and_then(|socket| {
            self.epoll.add_reader(socket.as_raw_fd(), token.pack())?;
            enable_gro(socket.as_raw_fd());
            Ok(socket)
        });
        opened.inspect_err(|_| self.core.counters.count(reason)).ok()
    }

    fn socket_for(&self, via: Via, to: SocketAddr) -> Option<RawFd> {
        match via {
            Via::Tunnel => Some(self.tunnel.as_raw_fd()),
            Via::Client(id) => self.clients.get(&id).map(AsRawFd::as_raw_fd),
            Via::Exit(id) => {
                let sockets = self.exits.get(&id)?;
                let socket = if to.is_ipv4() { &sockets.v4 } else { &sockets.v6 };
                socket.as_ref().map(AsRawFd::as_raw_fd)
            }
        }
    }

    /// Send everything in the outbox.
    fn flush(&mut self) {
        if self.core.out.is_empty() {
            return;
        }
        self.open_exits();
        self.core.out.sort();
        let mut batch = std::mem::take(&mut self.trains);
        batch.clear();
        let limit = |to: SocketAddr| if self.sends_trains { self.narrow.limit(to.ip()) } else { 0 };
        batch.extend(trains(self.core.out.entries(), limit));
        self.turn = self.turn.wrapping_add(1);
        let mut rest = batch.as_mut_slice();
        while let Some(first) = rest.first().and_then(|train| self.core.out.entries().get(train.entries.start)) {
            let (via, fd) = (first.via, self.socket_for(first.via, first.to));
            let same_socket = |train: &&Train| {
                let entry = self.core.out.entries().get(train.entries.start);
                entry.is_some_and(|entry| entry.via == via && entry.to.is_ipv4() == first.to.is_ipv4())
            };
            let number = rest.iter().take_while(same_socket).count();
            let (now, later) = rest.split_at_mut(number);
            // When the socket takes no more, it is not always the same who lose; nobody's own order changes.
            now.rotate_left(first_of_a_destination(self.core.out.entries(), now, self.turn));
            match fd {
                Some(fd) => self.send(fd, now),
                None => self.refuse(Drop::UdpSendError, now),
            }
            rest = later;
        }
        self.trains = batch;
        self.core.out.clear();
    }

    fn refuse(&self, reason: Drop, trains: &[Train]) {
        self.core.counters.add(reason, trains.iter().map(|train| train.entries.len() as u64).sum());
    }

    fn send(&mut self, fd: RawFd, mut batch: &[Train]) {
        while let Some((first, others)) = batch.split_first() {
            match self.postman.send(fd, &self.core.out, batch) {
                Ok(sent) => batch = batch.get(sent.max(1)..).unwrap_or(&[]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.refuse(Drop::UdpSendFull, batch);
                    return;
                }
                Err(error) => {
                    if first.entries.len() > 1 {
                        self.send_apart(fd, first, &error);
                    } else {
                        self.refuse(Drop::UdpSendError, std::slice::from_ref(first));
                    }
                    batch = others;
                }
            }
        }
    }

    /// A train was refused: its segments are larger than the path takes, or its device can't cut.
    fn send_apart(&mut self, fd: RawFd, train: &Train, error: &io::Error) {
        let narrower = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EMSGSIZE) => train.segment_bytes.saturating_sub(1),
            Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => 0,
            _ => return self.refuse(Drop::UdpSendError, std::slice::from_ref(train)),
        };
        if let Some(first) = self.core.out.entries().get(train.entries.start) {
            self.narrow.learn(first.to.ip(), narrower);
        }
        for number in train.entries.clone() {
            self.send(fd, &[Train { entries: number..number + 1, segment_bytes: train.segment_bytes }]);
        }
    }

    // The data stream

    fn attach_stream(&mut self, input: OwnedFd, output: OwnedFd) {
        if self.epoll.add_reader(input.as_raw_fd(), Token::StreamIn.pack()).is_ok() {
            self.stream_in = Some(FrameReader::new(input));
            self.stream_out = Some(StreamOut { file: output.into(), waiting: false });
            self.core.stream = Some(Vec::new());
        }
    }

    fn read_stream(&mut self) {
        let Some(mut reader) = self.stream_in.take() else { return };
        let mut outcome = reader.fill();
        if outcome.is_ok() {
            outcome = reader.frames(|frame| {
                self.served += 1;
                self.make_room();
                self.core.frame_received(frame.circuit_id, frame.address, frame.payload);
            });
        }
        match outcome {
            Ok(()) => self.stream_in = Some(reader),
            Err(why) => {
                self.epoll.remove(reader.as_raw_fd());
                self.shared.notify(std::iter::once(Notice::StreamLost(why)));
            }
        }
    }

    fn flush_stream(&mut self) {
        let (Some(out), Some(queue)) = (&mut self.stream_out, &mut self.core.stream) else { return };
        if out.waiting || queue.is_empty() {
            return;
        }
        match out.file.write(queue) {
            Ok(written) => drop(queue.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => {
                // The reader is gone; the end of its other streams tells Python.
                self.stream_out = None;
                self.core.stream = None;
                return;
            }
        }
        if !queue.is_empty() && self.epoll.add_writer(out.file.as_raw_fd(), Token::StreamOut.pack()).is_ok() {
            out.waiting = true;
        }
    }
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

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_keeps_each_destinations_order() {
        let entry = |port| Entry { via: Via::Tunnel, to: SocketAddr::from(([127, 0, 0, 1], port)), at: 0..1 };
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
