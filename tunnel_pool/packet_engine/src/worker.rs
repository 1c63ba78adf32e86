//! The engine's thread: it owns the sockets and the tables, and does all the I/O around `Core`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::{Core, Event, Settings};
use crate::counters::DropReason;
use crate::exit_from::ExitFrom;
use crate::limits::Limits;
use crate::outbox::Via;
use crate::routes::{largest_message, MAX_PACKET_BYTES, USUAL_LAYERS};
use crate::sender::Sender;
use crate::shaper::Shaper;
use crate::shared::{Command, Notice, Shared};
use crate::stream::FrameReader;
use crate::streams::bridge::Asked;
use crate::streams::entries::{Client, Watch};
use crate::streams::quic::LinkId;
use crate::streams::service::{Service, MAX_TRIES};
use crate::sys::{
    bind_udp, enable_arrivals, enable_gro, has_gso, local_address, monotonic_ns, path_mtu, set_timer_slack, Epoll,
    Inbox,
};

/// Waking up costs as much as several datagrams. When they come one after the other, the engine
/// lets some gather, as network cards do (interrupt moderation); an idle one answers at once.
const PAUSE: Duration = Duration::from_micros(200);
const BUSY_WAIT: Duration = Duration::from_micros(100);
const WORTHWHILE: usize = 32;
/// How often what waits for a limit is looked at.
const SHAPER_PERIOD: Duration = Duration::from_millis(1);
const TIMER_SLACK_NS: u64 = 1_000;

#[derive(Clone, Copy)]
enum Token {
    Wake,
    Tunnel,
    Exit4(u32),
    Exit6(u32),
    Client(u32),
    StreamIn,
    StreamOut,
    /// A TCP connection of a stream, by its number.
    Tcp(u32),
    /// Where strangers connect to a circuit.
    Door(u32),
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
            Token::Tcp(number) => (7, number),
            Token::Door(id) => (8, id),
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
            7 => Token::Tcp(id),
            8 => Token::Door(id),
            _ => return None,
        })
    }
}

impl Watch for Epoll {
    fn watch(&self, socket: &TcpStream, number: u32) -> io::Result<()> {
        self.add_changes(socket, Token::Tcp(number).pack())
    }

    fn watch_door(&self, listener: &TcpListener, circuit_id: u32) -> io::Result<()> {
        self.add_reader(listener, Token::Door(circuit_id).pack())
    }
}

struct ExitSockets {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl ExitSockets {
    fn towards(&self, to: SocketAddr) -> Option<&OwnedFd> {
        if to.is_ipv4() {
            self.v4.as_ref()
        } else {
            self.v6.as_ref()
        }
    }
}

struct StreamOut {
    file: File,
    waiting: bool,
}

/// The engine's loop, with all sockets and tables. It is created on Python's thread and then moved to its own.
pub struct Worker {
    core: Core,
    shared: Arc<Shared>,
    epoll: Epoll,
    inbox: Inbox,
    sender: Sender,
    tunnel: OwnedFd,
    exit_from: Arc<ExitFrom>,
    exits: HashMap<u32, ExitSockets>,
    clients: HashMap<u32, OwnedFd>,
    stream_in: Option<FrameReader>,
    stream_out: Option<StreamOut>,
    streams: Service,
    /// Datagrams and frames of this round.
    served: usize,
    stopped: bool,
}

impl Worker {
    /// `tunnel` is a bound, non-blocking socket.
    /// With `takes_trains`, the kernel may join what comes to it.
    pub fn new(
        tunnel: OwnedFd,
        exit_from: ExitFrom,
        settings: Settings,
        may_send_trains: bool,
        takes_trains: bool,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add_reader(&shared.wake, Token::Wake.pack())?;
        epoll.add_reader(&tunnel, Token::Tunnel.pack())?;
        if takes_trains {
            enable_gro(&tunnel);
        }
        let has_all_addresses = local_address(&tunnel).is_some_and(|at| at.ip().is_unspecified());
        let learns_arrivals = has_all_addresses && enable_arrivals(&tunnel);
        let exit_from = Arc::new(exit_from);
        Ok(Self {
            core: Core::new(settings, shared.counters.clone()),
            shared,
            epoll,
            inbox: Inbox::default(),
            sender: Sender::new(may_send_trains && has_gso(&tunnel), learns_arrivals),
            tunnel,
            exits: HashMap::new(),
            clients: HashMap::new(),
            stream_in: None,
            stream_out: None,
            streams: Service::new(exit_from.clone()),
            exit_from,
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
            let at_most = self.at_most();
            match self.epoll.wait(at_most) {
                Ok(tokens) => ready.extend(tokens.filter_map(Token::unpack)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let waited = waiting.elapsed();
            self.core.now_ms = now_ms();
            self.core.now = Instant::now();
            self.core.gate.now_ns = monotonic_ns();
            // Commands that Python gave before a datagram came apply to it: serve them first.
            if let Some(wake) = ready.iter().position(|token| matches!(token, Token::Wake)) {
                ready.swap(0, wake);
            }
            for token in &ready {
                self.serve(*token)?;
            }
            self.work_streams();
            self.release();
            self.flush();
            self.open_doors();
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

    /// How long to wait for something to happen: None is for ever.
    fn at_most(&self) -> Option<Duration> {
        if self.streams.is_busy() || self.core.quic.is_dirty() {
            return Some(Duration::ZERO);
        }
        let due = [self.streams.due(), self.core.quic.due()].into_iter().flatten().min();
        let until_due = due.map(|due| due.saturating_duration_since(Instant::now()));
        [until_due, self.core.gate.is_waiting().then_some(SHAPER_PERIOD)].into_iter().flatten().min()
    }

    /// Let streams go on, and send what they have to say.
    fn work_streams(&mut self) {
        self.streams.work(&mut self.core, &self.epoll);
        while self.core.quic.is_dirty() {
            if !self.core.gate.outbox.has_room_for_a_train() {
                self.flush();
            }
            self.core.transmit_streams();
        }
    }

    fn serve(&mut self, token: Token) -> io::Result<()> {
        match token {
            Token::Wake => {
                for command in self.shared.take_commands() {
                    self.execute(command)?;
                }
            }
            Token::Tunnel => {
                let bytes = self.receive(self.tunnel.as_raw_fd(), Core::tunnel_received);
                self.shared.wire.received(bytes);
            }
            Token::Exit4(id) | Token::Exit6(id) => {
                let sockets = self.exits.get(&id);
                let socket = match token {
                    Token::Exit4(_) => sockets.and_then(|sockets| sockets.v4.as_ref()),
                    _ => sockets.and_then(|sockets| sockets.v6.as_ref()),
                };
                if let Some(fd) = socket.map(AsRawFd::as_raw_fd) {
                    self.receive(fd, |core, from, bytes, _| core.exit_received(id, from, bytes));
                }
            }
            Token::Client(id) => {
                if let Some(fd) = self.clients.get(&id).map(AsRawFd::as_raw_fd) {
                    self.receive(fd, |core, from, bytes, _| core.client_received(id, from, bytes));
                }
            }
            Token::Tcp(number) => {
                self.served += 1;
                self.streams.ready(&mut self.core, number);
            }
            Token::Door(id) => {
                self.served += 1;
                self.streams.called(&mut self.core, &self.epoll, id);
            }
            Token::StreamIn => self.read_stream(),
            Token::StreamOut => {
                if let Some(out) = &mut self.stream_out {
                    self.epoll.remove(&out.file);
                    out.waiting = false;
                }
            }
        }
        Ok(())
    }

    /// Receive one batch from a socket and give each datagram to `handle` with its place in the inbox.
    /// Return the bytes of all.
    fn receive(&mut self, fd: RawFd, handle: impl Fn(&mut Core, SocketAddr, &mut [u8], usize)) -> usize {
        let mut bytes = 0;
        if self.core.gate.outbox.uses_inbox() {
            self.flush();
        }
        match self.inbox.receive(fd) {
            Ok(count) => {
                for index in 0..count {
                    let Some((from, datagrams)) = self.inbox.message(index) else { continue };
                    if fd == self.tunnel.as_raw_fd() {
                        if let (Some(arrivals), Some(to)) = (self.sender.arrivals(), self.inbox.came_to(index)) {
                            arrivals.came(from, to);
                        }
                    }
                    for at in datagrams {
                        self.served += 1;
                        bytes += at.len();
                        self.make_room();
                        if let Some(datagram) = self.inbox.datagram(at.clone()) {
                            handle(&mut self.core, from, datagram, at.start);
                        }
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.core.counters.count(DropReason::UdpReceiveError),
        }
        bytes
    }

    fn make_room(&mut self) {
        if !self.core.gate.outbox.has_room() {
            self.flush();
        }
    }

    /// Carry a command out; an error is the engine's end.
    fn execute(&mut self, command: Command) -> io::Result<()> {
        self.make_room();
        let core = &mut self.core;
        match command {
            Command::Configure(settings) => core.settings = settings,
            Command::SetExitRules(rules) => {
                core.rules = rules;
                self.streams.close_forbidden_doors(core);
                core.may_get_doors();
            }
            Command::SendPacket { to, packet } => core.send_packet(to, &packet),
            Command::SendCell { to, circuit_id, plaintext, message } => {
                core.send_cell(to, circuit_id, plaintext, &message);
            }
            Command::ExitSend { circuit_id, to, payload } => core.exit_send(circuit_id, to, &payload),
            Command::SetCircuit(id, mut circuit) => {
                circuit.largest_message = largest_message_to(circuit.first_hop, circuit.layers_in_all());
                if let Some(before) = core.routes.circuits.get_mut(&id) {
                    circuit.probes = std::mem::take(&mut before.probes);
                    (circuit.guests, circuit.is_silent) = (before.guests, before.is_silent);
                    circuit.forbidden_ports = std::mem::take(&mut before.forbidden_ports);
                    circuit.relay_early_count.set(before.relay_early_count.get());
                }
                core.routes.set_circuit(id, circuit);
                core.try_streams(id);
            }
            Command::RemoveCircuit(id) => {
                self.streams.forget(core, LinkId::ours(id));
                if let Some((lane, destinations)) = core.routes.remove_circuit(id) {
                    if !destinations.is_empty() {
                        core.events.push(Event::Orphans { lane, destinations });
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
                if let Some(before) = core.routes.exits.remove(&id) {
                    (exit.contacts, exit.strangers) = (before.contacts, before.strangers);
                    (exit.dials, exit.probes) = (before.dials, before.probes);
                    (exit.callers, exit.has_door) = (before.callers, before.has_door);
                }
                exit.largest_message = largest_message_to(exit.previous_hop, USUAL_LAYERS);
                exit.enabled = self.exits.contains_key(&id);
                core.routes.exits.insert(id, *exit);
            }
            Command::RemoveExit(id) => {
                self.flush();
                self.streams.forget(&mut self.core, LinkId::exit(id));
                self.core.routes.exits.remove(&id);
                self.exits.remove(&id);
            }
            Command::AttachStream { input, output } => self.attach_stream(input, output)?,
            Command::AddAssociation { id, socket, association } => {
                self.remove_association(id);
                enable_gro(&socket);
                self.epoll.add_reader(&socket, Token::Client(id).pack())?;
                self.clients.insert(id, socket);
                self.core.routes.clients.add(id, association);
            }
            Command::RemoveAssociation(id) => self.remove_association(id),
            Command::OpenStream { socket, lane, destination, early } => {
                let asked = Asked { lane, destination, early, tries: MAX_TRIES };
                self.streams.open(core, &self.epoll, Client { socket: socket.into(), asked });
            }
            Command::Resolved { number, ip } => self.streams.resolved(core, &self.epoll, number, ip),
            Command::RefuseGuest(known_as) => self.streams.refuse_guests(core, known_as),
            Command::SetUsual(id) => core.routes.clients.set_usual(id),
            Command::Announce(id) => core.routes.announce(id),
            Command::ExitAnnounced(id) => core.exit_announced(id),
            Command::TellExitPort(id) => {
                core.enable_exit(id);
                self.open_exits();
                let at = self.exits.get(&id).and_then(|sockets| sockets.v4.as_ref()).and_then(local_address);
                let port = at.map_or(0, |at| at.port());
                self.core.events.push(Event::ExitPort { circuit_id: id, port });
            }
            Command::Pin { association, destination, circuit_id } => {
                core.routes.pin(association, &destination, circuit_id);
            }
            Command::ClientDatagram { association, datagram } => {
                match core.routes.clients.get(association).map(|known| known.client) {
                    Some(client) => core.client_received(association, client, &datagram),
                    None => core.counters.count(DropReason::Socks5ForeignSource),
                }
            }
            Command::SetHandshakes { per_s, per_source_per_s } => {
                for handshakes in [&mut core.handshakes, &mut core.answers] {
                    handshakes.per_s = per_s;
                    handshakes.per_source_per_s = per_source_per_s;
                }
            }
            Command::SetLimits { memory, slot } => core.gate.shaper = Limits::new(memory, slot).map(Shaper::new),
            Command::Stop => self.stopped = true,
        }
        Ok(())
    }

    fn remove_association(&mut self, id: u32) {
        self.flush();
        self.core.routes.clients.remove(id);
        if let Some(socket) = self.clients.remove(&id) {
            // The main process has the same open file, so that closing ours would not end the reports.
            self.epoll.remove(&socket);
        }
    }

    // Out

    /// Let go what waited for a limit.
    fn release(&mut self) {
        if !self.core.gate.is_waiting() {
            return;
        }
        self.core.gate.now_ns = monotonic_ns();
        self.core.gate.share_out();
        while self.core.gate.release() {
            self.flush();
        }
        if !self.core.gate.is_waiting() {
            self.core.gate.share_out();
        }
    }

    fn open_exits(&mut self) {
        for id in std::mem::take(&mut self.core.to_enable) {
            let both = self.exit_from.ip.is_unspecified();
            let v6 = |worker: &Self| {
                worker.open_exit(Ipv6Addr::UNSPECIFIED.into(), Token::Exit6(id), DropReason::ExitNoIpv6Socket)
            };
            let sockets = ExitSockets {
                v4: self.open_exit(self.exit_from.ip, Token::Exit4(id), DropReason::ExitNoIpv4Socket),
                v6: both.then(|| v6(self)).flatten(),
            };
            match self.core.routes.exits.get_mut(&id) {
                // The next datagram tries again.
                Some(exit) if sockets.v4.is_none() => exit.enabled = false,
                Some(_) => {
                    self.exits.insert(id, sockets);
                    self.core.may_get_door(LinkId::exit(id));
                }
                None => {}
            }
        }
    }

    /// Let strangers connect where circuits that were announced are found.
    fn open_doors(&mut self) {
        for id in std::mem::take(&mut self.core.to_open_door) {
            if let Some(at) = self.exits.get(&id).and_then(|sockets| sockets.v4.as_ref()).and_then(local_address) {
                self.streams.open_door(&mut self.core, &self.epoll, id, at);
            }
        }
    }

    fn open_exit(&self, ip: IpAddr, token: Token, reason: DropReason) -> Option<OwnedFd> {
        let from = &self.exit_from;
        let bound = from.bind(ip, monotonic_ns(), |address| bind_udp(address, from.device.as_deref()));
        let opened = bound.and_then(|socket| {
            self.epoll.add_reader(&socket, token.pack())?;
            enable_gro(&socket);
            Ok(socket)
        });
        opened.inspect_err(|_| self.core.counters.count(reason)).ok()
    }

    /// Send everything in the outbox.
    fn flush(&mut self) {
        if self.core.gate.outbox.is_empty() {
            return;
        }
        self.open_exits();
        let (tunnel, exits, clients) = (self.tunnel.as_raw_fd(), &self.exits, &self.clients);
        let socket_for = |via, to: SocketAddr| match via {
            Via::Tunnel => Some(tunnel),
            Via::Client(id) => clients.get(&id).map(AsRawFd::as_raw_fd),
            Via::Exit(id) => exits.get(&id)?.towards(to).map(AsRawFd::as_raw_fd),
        };
        let outgoing = self.core.gate.outbox.sorted(self.inbox.bytes());
        let sent = self.sender.send_all(&outgoing, &self.core.counters, socket_for);
        self.shared.wire.sent(sent);
        self.core.gate.outbox.clear();
    }

    // The data stream

    fn attach_stream(&mut self, input: OwnedFd, output: OwnedFd) -> io::Result<()> {
        self.epoll.add_reader(&input, Token::StreamIn.pack())?;
        self.stream_in = Some(FrameReader::new(input));
        self.stream_out = Some(StreamOut { file: output.into(), waiting: false });
        self.core.stream = Some(Vec::new());
        Ok(())
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
                self.epoll.remove(&reader);
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
        if !queue.is_empty() && self.epoll.add_writer(&out.file, Token::StreamOut.pack()).is_ok() {
            out.waiting = true;
        }
    }
}

/// The most bytes of a message that travel in one packet, by what the kernel knows of the way to a neighbour.
fn largest_message_to(neighbour: SocketAddr, layers: usize) -> usize {
    largest_message(neighbour, path_mtu(neighbour).unwrap_or(MAX_PACKET_BYTES), layers)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
