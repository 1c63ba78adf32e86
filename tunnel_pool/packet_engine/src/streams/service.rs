//! The TCP connections at both ends of streams: those of SOCKS5 clients, and those that exits make. All their I/O.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use socket2::{Domain, Socket, Type};

use crate::address::Destination;
use crate::core::{Core, Event as Notice};
use crate::counters::DropReason;
use crate::exit_from::ExitFrom;
use crate::streams::bridge::{Asked, Bridge, Turn, SCRATCH_BYTES};
use crate::streams::entries::{turn_away, Client, Door, Entry, Opening, Step, Watch, MAX_CONNECTIONS, MAX_EARLY_BYTES};
use crate::streams::error::StreamError;
use crate::streams::inspection::Inspection;
use crate::streams::opening::{self, Reply, Wish};
use crate::streams::quic::{Event, LinkId, Read, StreamKey, Write};

/// How long a client waits for a circuit, an exit for a whole request, a name's address, and a connection.
const OPENING_TIME: Duration = Duration::from_secs(20);
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// BitTorrent's peers say something every two minutes (BEP 3).
const IDLE_TIME: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an exit's client has to begin, and its server to answer, in a way that may pass.
const JUDGING_TIME: Duration = Duration::from_secs(30);
/// How many exits are asked to lead a client to a destination, where some do not let it go there.
pub const MAX_TRIES: u8 = 3;
/// Once half of all connections are taken, a circuit gets no more than so many.
const MAX_OF_CIRCUIT_WHEN_FULL: u64 = 64;
/// Streams of all circuits that one previous hop has here, while half of all connections are taken.
const MAX_OF_NEIGHBOUR_WHEN_FULL: u64 = 1024;

/// The connections and streams of one child. `Worker` owns it and passes on what the kernel reports.
pub struct Service {
    /// The connections and streams, by number.
    pub(super) entries: HashMap<u32, Entry>,
    /// The numbers of entries that have a stream, by stream.
    pub(super) by_key: HashMap<StreamKey, u32>,
    /// Where the circuits that end here can be called.
    pub(super) doors: HashMap<u32, Door>,
    next_number: u32,
    /// Connections that could move more than their turn allowed.
    busy: Vec<u32>,
    events: Vec<Event>,
    scratch: Box<[u8]>,
    looked: Instant,
    /// The address, ports and device for the connections of exits.
    pub(super) from: Arc<ExitFrom>,
}

impl Service {
    /// Creates a service without connections. `from` is for the connections of exits.
    pub fn new(from: Arc<ExitFrom>) -> Self {
        Self {
            entries: HashMap::new(),
            by_key: HashMap::new(),
            doors: HashMap::new(),
            next_number: 0,
            busy: Vec::new(),
            events: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            looked: Instant::now(),
            from,
        }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is a connection of this number.
    pub fn has(&self, number: u32) -> bool {
        self.entries.contains_key(&number)
    }

    /// Returns whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether something could move at once.
    pub fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// When `work` is to be called at the latest.
    pub fn due(&self) -> Option<Instant> {
        (!self.entries.is_empty()).then(|| self.looked + LOOK_EVERY)
    }

    /// Returns the number for a new entry; numbers wrap around after 2^32.
    pub(super) fn next_number(&mut self) -> u32 {
        self.next_number = self.next_number.wrapping_add(1);
        self.next_number
    }

    fn add(&mut self, entry: Entry) -> u32 {
        let number = self.next_number();
        self.entries.insert(number, entry);
        number
    }

    /// Lead a SOCKS5 client's connection through a circuit of its lane to its destination.
    pub fn open(&mut self, core: &mut Core, watch: &impl Watch, client: Client) {
        if self.entries.len() >= MAX_CONNECTIONS {
            turn_away(client.socket, StreamError::TooMany.counted(&core.counters));
            return;
        }
        let now = core.now;
        self.place(core, watch, client, now);
    }

    /// Open a stream for a client, or let it wait for a circuit that may come to carry streams.
    fn place(&mut self, core: &mut Core, watch: &impl Watch, client: Client, since: Instant) {
        let Some(client) = self.meet_guest(core, watch, client) else { return };
        let Asked { lane, destination, .. } = &client.asked;
        let link = core.link_for(*lane, destination);
        let Some(key) = link.and_then(|link| core.quic.open(link)) else {
            if core.may_get_link(*lane, destination) {
                self.add(Entry::Waiting(client, since));
            } else {
                turn_away(client.socket, StreamError::NoCircuit.counted(&core.counters));
            }
            return;
        };
        let bridge = Bridge::of_client(key, client.socket, client.asked, core.now);
        core.stream_opened(key.link);
        let number = self.next_number();
        self.by_key.insert(key, number);
        self.watch_and_join(core, watch, number, bridge);
    }

    /// Let a client's connection go on under its number.
    pub(super) fn watch_and_join(&mut self, core: &mut Core, watch: &impl Watch, number: u32, bridge: Bridge) {
        let is_watched = watch.watch(bridge.socket(), number).is_ok();
        self.entries.insert(number, Entry::Joined(Box::new(bridge)));
        if is_watched {
            self.turn(core, number);
        } else {
            self.end(core, number, true);
        }
    }

    /// The kernel reports a change of a connection.
    pub fn ready(&mut self, core: &mut Core, number: u32) {
        match self.entries.get_mut(&number) {
            Some(Entry::Joined(bridge)) => {
                bridge.is_ready();
                self.turn(core, number);
            }
            Some(Entry::Opening(Opening { step: Step::Connecting { .. }, .. })) => self.connected(core, number),
            Some(Entry::Caller(_)) => self.hear(core, number),
            _ => {}
        }
    }

    /// Let time pass: handle what has happened to connections and streams.
    pub fn work(&mut self, core: &mut Core, watch: &impl Watch) {
        for number in std::mem::take(&mut self.busy) {
            self.turn(core, number);
        }
        let mut events = std::mem::take(&mut self.events);
        core.quic.poll(core.now, &mut events);
        for event in events.drain(..) {
            self.happened(core, watch, event);
        }
        self.events = events;
        if core.now - self.looked >= LOOK_EVERY {
            self.looked = core.now;
            self.end_the_late(core);
            self.look_at_doors(core);
        }
    }

    fn happened(&mut self, core: &mut Core, watch: &impl Watch, event: Event) {
        match event {
            Event::Connected(link) => {
                core.link_changed(link);
                core.may_get_door(link);
                self.place_waiting(core, watch);
            }
            Event::Lost(link) => {
                core.link_lost(link);
                self.forget(core, link);
                self.place_waiting(core, watch);
            }
            Event::Opened(key) => self.asked(core, watch, key),
            Event::Readable(key) | Event::Writable(key) => {
                if let Some(number) = self.by_key.get(&key).copied() {
                    match self.entries.get(&number) {
                        Some(Entry::Joined(_)) => self.turn(core, number),
                        Some(Entry::Opening(_)) => self.read_request(core, watch, number),
                        _ => {}
                    }
                }
            }
            Event::Stopped(key) => {
                let Some(number) = self.by_key.get(&key).copied() else { return };
                if let Some(Entry::Joined(bridge)) = self.entries.get_mut(&number) {
                    bridge.is_stopped();
                    self.turn(core, number);
                } else {
                    self.end(core, number, true);
                }
            }
        }
    }

    fn place_waiting(&mut self, core: &mut Core, watch: &impl Watch) {
        let waiting = self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Waiting(..)));
        let numbers: Vec<u32> = waiting.map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(Entry::Waiting(client, since)) = self.entries.remove(&number) {
                self.place(core, watch, client, since);
            }
        }
    }

    /// Forget a circuit's connection, and end its streams.
    pub fn forget(&mut self, core: &mut Core, link: LinkId) {
        let lost: Vec<u32> =
            self.by_key.iter().filter(|(key, _)| key.link == link).map(|(_, number)| *number).collect();
        for number in lost {
            self.end(core, number, true);
        }
        if !link.is_ours {
            self.close_door(core, link.circuit_id);
            self.entries.retain(|_, entry| !matches!(entry, Entry::Caller(caller) if caller.link == link));
        }
        core.quic.remove(link);
    }

    /// Moves bytes between a joined stream and its connection, then handles the outcome. Other entries are ignored.
    pub(super) fn turn(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Joined(bridge)) = self.entries.get_mut(&number) else { return };
        let turn = bridge.turn(&mut core.quic, &mut self.scratch, core.now);
        let (sent, received) = bridge.take_bytes();
        core.stream_carried(bridge.key.link, sent, received);
        if bridge.is_judged() {
            if let Some(to) = bridge.unjudged.take() {
                core.dial_judged(bridge.key.link, to, true);
            }
        }
        match turn {
            Turn::Waits => {}
            Turn::Goes => {
                if !self.busy.contains(&number) {
                    self.busy.push(number);
                }
            }
            Turn::Done => self.end(core, number, false),
            Turn::Broken => self.end(core, number, true),
            Turn::Forbidden => self.ask_another(core, number),
            Turn::Refused => {
                core.counters.count(DropReason::StreamContentRefused);
                self.end(core, number, true);
            }
        }
    }

    /// Lead a client, whom an exit does not let go where it wants to, over another circuit, or tell it so.
    fn ask_another(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Joined(bridge)) = self.entries.get_mut(&number) else { return };
        let before = bridge.key;
        let other = bridge.take_asked().and_then(|mut asked| {
            core.forbidden(before.link, &asked.destination);
            asked.tries = asked.tries.checked_sub(1).filter(|left| *left > 0)?;
            let link = core.link_for(asked.lane, &asked.destination)?;
            let is_other = link != before.link && !core.is_forbidden(link, &asked.destination);
            let key = if is_other { core.quic.open(link) } else { None };
            key.map(|key| (key, asked))
        });
        core.quic.reset(before);
        match other {
            Some((key, asked)) => {
                core.stream_ended(before.link);
                core.stream_opened(key.link);
                self.by_key.remove(&before);
                self.by_key.insert(key, number);
                bridge.ask(key, asked);
            }
            None => bridge.forbid(),
        }
        self.turn(core, number);
    }

    /// Forget a connection; one that is `broken` off is reset on both sides.
    fn end(&mut self, core: &mut Core, number: u32, broken: bool) {
        let (key, socket) = if let Some(opening) = self.take_opening(core, number) {
            let socket = match opening.step {
                Step::Connecting { socket, .. } => Some(socket),
                _ => None,
            };
            (opening.key, socket)
        } else {
            match self.entries.remove(&number) {
                Some(Entry::Joined(bridge)) => {
                    if let Some(known_as) = bridge.guest {
                        core.met.remove(&known_as);
                    }
                    if let Some(to) = bridge.unjudged {
                        core.dial_judged(bridge.key.link, to, false);
                    }
                    (bridge.key, Some(bridge.into_socket()))
                }
                Some(Entry::Waiting(client, _)) => {
                    turn_away(client.socket, StreamError::NoCircuit.reply());
                    return;
                }
                _ => return, // a caller has nothing but its socket
            }
        };
        core.stream_ended(key.link);
        self.by_key.remove(&key);
        if broken {
            core.quic.reset(key);
            if let Some(socket) = socket {
                let _ = Socket::from(socket).set_linger(Some(Duration::ZERO)); // closing it sends a reset
            }
        }
    }

    fn end_the_late(&mut self, core: &mut Core) {
        let now = core.now;
        let late = self.entries.iter().filter(|(_, entry)| match entry {
            Entry::Waiting(_, since) => now - *since > OPENING_TIME,
            Entry::Caller(caller) => now - caller.since > JUDGING_TIME,
            Entry::Opening(opening) => match opening.step {
                Step::Connecting { .. } => now - opening.since > CONNECT_TIME,
                _ => now - opening.since > OPENING_TIME,
            },
            Entry::Joined(bridge) => now - bridge.active > if bridge.is_judged() { IDLE_TIME } else { JUDGING_TIME },
        });
        let late: Vec<u32> = late.map(|(number, _)| *number).collect();
        for number in late {
            let reply = StreamError::TimedOut.counted(&core.counters);
            match self.entries.get(&number) {
                Some(Entry::Opening(_)) => self.answer(core, number, reply),
                _ => self.end(core, number, true),
            }
        }
    }

    // Exits

    /// The other end of a circuit has opened a stream.
    fn asked(&mut self, core: &mut Core, watch: &impl Watch, key: StreamKey) {
        let opening = Opening { key, bytes: Vec::new(), request_bytes: 0, step: Step::Asked, since: core.now };
        core.stream_opened(key.link);
        let number = self.add(Entry::Opening(opening));
        self.by_key.insert(key, number);
        let is_greedy = self.entries.len() > MAX_CONNECTIONS / 2
            && (core.open_streams(key.link) > MAX_OF_CIRCUIT_WHEN_FULL
                || core.open_streams_of_neighbour(key.link) > MAX_OF_NEIGHBOUR_WHEN_FULL);
        // A guest waits for a client, whose connection is another one.
        let most = if key.link.is_ours { MAX_CONNECTIONS / 2 } else { MAX_CONNECTIONS };
        if self.entries.len() > most || is_greedy {
            self.refuse(core, number, StreamError::TooMany);
            return;
        }
        self.read_request(core, watch, number);
    }

    /// Read what has come of a stream whose connection is not there yet.
    fn read_request(&mut self, core: &mut Core, watch: &impl Watch, number: u32) {
        let Some(Entry::Opening(opening)) = self.entries.get_mut(&number) else { return };
        while opening.bytes.len() < MAX_EARLY_BYTES {
            match core.quic.read(opening.key, MAX_EARLY_BYTES - opening.bytes.len()) {
                Read::Data(data) => opening.bytes.extend_from_slice(&data),
                Read::Nothing => break,
                Read::End | Read::Reset => {
                    self.end(core, number, true);
                    return;
                }
            }
        }
        if !matches!(opening.step, Step::Asked) {
            return;
        }
        if opening.key.link.is_ours {
            self.guest_asked(core, number);
            return;
        }
        match opening::parse_request(Wish::Connect, &opening.bytes) {
            Ok(None) => {}
            Err(_) => self.refuse(core, number, StreamError::Malformed),
            Ok(Some((destination, request_bytes))) => {
                opening.request_bytes = request_bytes;
                let link = opening.key.link;
                match destination {
                    Destination::Ip(to) => self.dial_out(core, watch, number, to, false),
                    Destination::Name(name, port) => {
                        let name = String::from_utf8_lossy(name).into_owned();
                        opening.step = Step::Resolving { port };
                        match core.may_resolve(link.circuit_id, &name, port) {
                            Ok(()) => core.events.push(Notice::Resolve { number, name, circuit_id: link.circuit_id }),
                            Err(error) => self.refuse(core, number, error),
                        }
                    }
                }
            }
        }
    }

    /// Python has looked a name up; no address means that there is none.
    pub fn resolved(&mut self, core: &mut Core, watch: &impl Watch, number: u32, ip: Option<IpAddr>) {
        let Some(Entry::Opening(Opening { step: Step::Resolving { port }, .. })) = self.entries.get(&number) else {
            return;
        };
        match ip.map(|ip| SocketAddr::new(ip, *port)) {
            Some(to) => self.dial_out(core, watch, number, to, true),
            None => self.refuse(core, number, StreamError::NoSuchName),
        }
    }

    /// Connect to a destination in the world, if that is allowed.
    fn dial_out(&mut self, core: &mut Core, watch: &impl Watch, number: u32, to: SocketAddr, by_name: bool) {
        let Some(Entry::Opening(opening)) = self.entries.get(&number) else { return };
        match core.may_dial(opening.key.link.circuit_id, to, by_name) {
            Ok(to) => self.dial(core, watch, number, to),
            Err(error) => {
                let reply = error.counted(&core.counters);
                // Whether a name is unknown or leads where nothing may go would map a network that we are in.
                let is_unknown = by_name && matches!(error, StreamError::Forbidden(_));
                self.answer(core, number, if is_unknown { StreamError::NoSuchName.reply() } else { reply });
            }
        }
    }

    /// Begin a connection.
    fn dial(&mut self, core: &mut Core, watch: &impl Watch, number: u32, to: SocketAddr) {
        let Some(Entry::Opening(opening)) = self.entries.get_mut(&number) else { return };
        let link = opening.key.link;
        let outcome = connect(&self.from, core.gate.now_ns, to).and_then(|socket| {
            watch.watch(&socket, number)?;
            Ok(socket)
        });
        opening.since = core.now;
        core.dial_begun(link, to.ip());
        match outcome {
            Ok(socket) => opening.step = Step::Connecting { socket, to },
            Err(error) => {
                core.dial_judged(link, to.ip(), false);
                self.refuse(core, number, error.into());
            }
        }
    }

    /// The connection that was begun is there, or has failed.
    fn connected(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Opening(Opening { key, step: Step::Connecting { socket, to }, .. })) =
            self.entries.get(&number)
        else {
            return;
        };
        let (link, to) = (key.link, *to);
        let error = match socket.take_error() {
            Ok(None) if socket.peer_addr().is_err() => return, // it is not there yet
            Ok(error) => error,
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            self.refuse(core, number, error.into());
            return;
        }
        core.dial_succeeded(link, to);
        let Some(Entry::Opening(opening)) = self.entries.remove(&number) else { return };
        let Step::Connecting { socket, .. } = opening.step else { return };
        let _ = socket.set_nodelay(true);
        let inspection = Inspection::new(core.stream_protocols(link), to.port());
        let early = opening.bytes.get(opening.request_bytes..).unwrap_or_default();
        let mut bridge = Bridge::of_exit(opening.key, socket, inspection, early, core.now);
        bridge.unjudged = Some(to.ip());
        self.entries.insert(number, Entry::Joined(Box::new(bridge)));
        self.turn(core, number);
    }

    /// Count why there is no connection, tell the client, and forget it.
    fn refuse(&mut self, core: &mut Core, number: u32, error: StreamError) {
        let reply = error.counted(&core.counters);
        self.answer(core, number, reply);
    }

    /// Tell the client that there is no connection, and forget it.
    pub(super) fn answer(&mut self, core: &mut Core, number: u32, reply: Reply) {
        if let Some(opening) = self.take_opening(core, number) {
            self.by_key.remove(&opening.key);
            core.stream_ended(opening.key.link);
            let mut code = Bytes::copy_from_slice(&[reply as u8]);
            if core.quic.write(opening.key, &mut code) == Write::Taken {
                core.quic.finish(opening.key);
                core.quic.stop(opening.key);
            } else {
                core.quic.reset(opening.key);
            }
        }
    }
}

/// Begin a connection; `turn` chooses the first port of the range that is tried.
fn connect(from: &ExitFrom, turn: u64, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(device) = &from.device {
        socket.bind_device(Some(device.to_bytes()))?;
    }
    let is_any = from.ip.is_unspecified();
    if !is_any && from.ip.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::NetworkUnreachable.into());
    }
    if !is_any || from.last_port > 0 {
        let ip = if from.ip.is_ipv4() == to.is_ipv4() { from.ip } else { Ipv6Addr::UNSPECIFIED.into() };
        socket.set_reuse_address(true)?; // connections that have ended hold their ports for a minute
        from.bind(ip, turn, |address| socket.bind(&address.into()))?;
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}
