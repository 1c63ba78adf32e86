//! QUIC connections in circuits, one in each, and their streams: bytes, events and the time in, packets and events out.
//!
//! quinn-proto knows a connection by the other end's address. Here that is made of the circuit's id: a circuit proves
//! who sends, so that nothing depends on it but the connection that a packet belongs to.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, EndpointEvent,
    Event as QuicEvent, MtuDiscoveryConfig, RandomConnectionIdGenerator, ReadError, ServerConfig, StreamEvent,
    StreamId, TransportConfig, VarInt, WriteError,
};
use ring::rand::SystemRandom;
use ring::{hkdf, hmac, rand::SecureRandom};

use crate::streams::delay_target::DelayTargetConfig;
use crate::streams::parts::{Joined, Joiner, Message, Splitter, WHOLE_OVERHEAD_BYTES};
use crate::streams::plaintext::{Greeting, Plaintext};

/// More than 1,024 gaps in a stream end its connection (quinn-proto's assembler): so many packets of 1,200 bytes can't
/// leave them.
const STREAM_WINDOW_BYTES: u32 = 2_400_000;
/// What one connection may keep of data that was not read, and of data that was not acknowledged.
const MAX_WINDOW_BYTES: u64 = 16 << 20;
const MIN_WINDOW_BYTES: u64 = 256 << 10;
/// What all connections may keep; they share it.
const ALL_WINDOWS_BYTES: u64 = 256 << 20;
/// QUIC's packets are never smaller (RFC 9000, 14).
const MIN_PACKET_BYTES: usize = 1200;
/// Packets that one call of quinn-proto makes at most.
const TRAIN: usize = 32;
/// A handshake that takes longer has failed: the other end speaks no streams.
const HANDSHAKE_TIME: Duration = Duration::from_secs(15);

/// A connection's circuit: one of ours, or one that ends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// The circuit's id in the tables of `Routes`.
    pub circuit_id: u32,
    /// Whether the circuit is ours; otherwise it is another node's and ends here.
    pub is_ours: bool,
}

impl LinkId {
    /// Returns the link of a circuit of ours.
    pub fn ours(circuit_id: u32) -> Self {
        Self { circuit_id, is_ours: true }
    }

    /// Returns the link of another node's circuit that ends here.
    pub fn exit(circuit_id: u32) -> Self {
        Self { circuit_id, is_ours: false }
    }

    fn address(self) -> SocketAddr {
        // Of a network that is nobody's; quinn-proto refuses port 0.
        let number = 0xfc00 << 112 | u128::from(self.is_ours) << 32 | u128::from(self.circuit_id);
        SocketAddr::from((Ipv6Addr::from(number), 1))
    }
}

/// A stream of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The connection that the stream belongs to.
    pub link: LinkId,
    /// The stream's id within its connection (RFC 9000, 2.1).
    pub id: StreamId,
}

/// A change of a connection or a stream, as `Quic::poll` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Streams can be opened.
    Connected(LinkId),
    /// The connection is over, or never came about.
    Lost(LinkId),
    /// The other end has opened a stream.
    Opened(StreamKey),
    /// There may be something to read: data, an end or a reset.
    Readable(StreamKey),
    /// A stream that was `Write::Blocked` may take data again.
    Writable(StreamKey),
    /// The other end wants no more of what we send.
    Stopped(StreamKey),
}

/// What reading from a stream gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes of the stream.
    Data(Bytes),
    /// There is nothing now.
    Nothing,
    /// The other end has finished.
    End,
    /// The stream was reset, or is gone.
    Reset,
}

/// What writing to a stream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// All was taken.
    Taken,
    /// What was not taken has to wait for `Event::Writable`.
    Blocked,
    /// The stream takes nothing any more.
    Stopped,
}

struct Link {
    handle: ConnectionHandle,
    connection: Connection,
    splitter: Splitter,
    /// The most bytes of a message that reach the other end in one packet.
    largest_message: usize,
    is_connected: bool,
    is_dirty: bool,
    /// The endpoint has forgotten it, and may have given its handle to another.
    is_drained: bool,
    /// When the connection wants to be looked at.
    due: Option<Instant>,
    opened: Instant,
}

/// The QUIC connections of one child, as client and as server.
pub struct Quic {
    endpoint: Endpoint,
    token_key: Arc<hkdf::Prk>,
    max_streams: u32,
    links: HashMap<LinkId, Link>,
    /// Halves of packets; those of a connection's first packet come before its link is there.
    joiners: HashMap<LinkId, Joiner>,
    by_handle: HashMap<ConnectionHandle, LinkId>,
    dirty: Vec<LinkId>,
    timers: BTreeSet<(Instant, LinkId)>,
    /// What each connection may keep now.
    window: u64,
    buffer: Vec<u8>,
}

/// Returns random bytes of the kernel. If the kernel has none, the call does not fail, and the bytes may be zeros.
pub fn random_bytes() -> [u8; 64] {
    let mut bytes = [0; 64];
    // Nobody is asked to prove anything by these: without randomness they only tell nobody apart.
    let _ = SystemRandom::new().fill(&mut bytes);
    bytes
}

fn transport(largest_message: usize, max_streams: u32) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let largest_packet = largest_message.saturating_sub(WHOLE_OVERHEAD_BYTES);
    let discovery = (largest_packet > MIN_PACKET_BYTES).then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(u16::try_from(largest_packet).unwrap_or(u16::MAX));
        discovery
    });
    config
        .congestion_controller_factory(Arc::new(DelayTargetConfig))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(MAX_WINDOW_BYTES as u32))
        .send_window(MAX_WINDOW_BYTES)
        .max_concurrent_bidi_streams(VarInt::from_u32(max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(None) // it lives as long as its circuit
        .mtu_discovery_config(discovery);
    Arc::new(config)
}

impl Quic {
    /// `max_streams` is how many streams the other end of a circuit may have at a time.
    pub fn new(max_streams: u32) -> Self {
        let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &random_bytes())));
        config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&random_bytes());
        let mut quic = Self {
            endpoint: Endpoint::new(Arc::new(config), None, true, None),
            token_key: Arc::new(token_key),
            max_streams,
            links: HashMap::new(),
            joiners: HashMap::new(),
            by_handle: HashMap::new(),
            dirty: Vec::new(),
            timers: BTreeSet::new(),
            window: MAX_WINDOW_BYTES,
            buffer: Vec::new(),
        };
        let server = quic.server_config(MIN_PACKET_BYTES);
        quic.endpoint.set_server_config(Some(server));
        quic
    }

    fn server_config(&self, largest_message: usize) -> Arc<ServerConfig> {
        let crypto = Plaintext(Greeting::ours(u16::try_from(largest_message).unwrap_or(u16::MAX)));
        let mut config = ServerConfig::new(Arc::new(crypto), self.token_key.clone());
        config.transport_config(transport(largest_message, self.max_streams)).migration(false);
        Arc::new(config)
    }

    /// Returns whether a circuit has a connection, established or not.
    pub fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Returns whether a circuit has a connection whose handshake is complete.
    pub fn is_connected(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.is_connected)
    }

    /// Returns the smoothed round trip of a circuit's connection (RFC 9002, 5.3); None without a connection.
    pub fn round_trip(&self, link: LinkId) -> Option<Duration> {
        self.links.get(&link).map(|known| known.connection.rtt())
    }

    /// Begin a connection over a circuit, whose messages may have so many bytes, and whose other end may open so many
    /// streams.
    pub fn connect(&mut self, link: LinkId, largest_message: usize, streams: u32, now: Instant) {
        if self.has(link) {
            return;
        }
        let crypto = Plaintext(Greeting::ours(u16::try_from(largest_message).unwrap_or(u16::MAX)));
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(transport(largest_message, streams));
        if let Ok((handle, connection)) = self.endpoint.connect(now, config, link.address(), "exit") {
            self.add(link, handle, connection, largest_message, now);
        }
    }

    fn add(
        &mut self,
        link: LinkId,
        handle: ConnectionHandle,
        mut connection: Connection,
        largest_message: usize,
        now: Instant,
    ) {
        connection.set_send_window(self.window);
        connection.set_receive_window(VarInt::from_u32(self.window as u32));
        let new = Link {
            handle,
            connection,
            splitter: Splitter::default(),
            largest_message,
            is_connected: false,
            is_dirty: false,
            is_drained: false,
            due: None,
            opened: now,
        };
        self.by_handle.insert(handle, link);
        self.links.insert(link, new);
        self.share_memory();
        self.touch(link);
    }

    /// Let the connections have equal parts of what all may keep.
    fn share_memory(&mut self) {
        let share = ALL_WINDOWS_BYTES / (self.links.len() as u64).max(1);
        let window = share.clamp(MIN_WINDOW_BYTES, MAX_WINDOW_BYTES);
        if window == self.window {
            return;
        }
        self.window = window;
        for link in self.links.values_mut() {
            link.connection.set_send_window(window);
            link.connection.set_receive_window(VarInt::from_u32(window as u32));
        }
    }

    /// Take a stream message that came over a circuit. With `largest_message` the other end may begin a connection.
    /// Returns whether it made sense.
    pub fn received(&mut self, link: LinkId, message: &[u8], largest_message: Option<usize>, now: Instant) -> bool {
        if largest_message.is_none() && !self.has(link) {
            return false;
        }
        let data = match self.joiners.entry(link).or_default().packet(message) {
            Joined::Packet(data) => data,
            Joined::Half => return true,
            Joined::Malformed => return false,
        };
        self.buffer.clear();
        match self.endpoint.handle(now, link.address(), None, None, data, &mut self.buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(link) = self.by_handle.get(&handle).copied() {
                    if let Some(known) = self.links.get_mut(&link) {
                        known.connection.handle_event(event);
                    }
                    self.touch(link);
                }
                true
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let Some(largest_message) = largest_message.filter(|_| !self.has(link)) else {
                    self.endpoint.ignore(incoming);
                    return false;
                };
                let config = self.server_config(largest_message);
                self.buffer.clear();
                match self.endpoint.accept(incoming, now, &mut self.buffer, Some(config)) {
                    Ok((handle, connection)) => self.add(link, handle, connection, largest_message, now),
                    Err(_) => return false,
                }
                true
            }
            // Only a connection that is there answers; strangers get nothing.
            Some(DatagramEvent::Response(_)) | None => false,
        }
    }

    /// Forget a circuit's connection, and all its streams.
    pub fn remove(&mut self, link: LinkId) {
        self.joiners.remove(&link);
        let Some(gone) = self.links.remove(&link) else { return };
        if let Some(due) = gone.due {
            self.timers.remove(&(due, link));
        }
        if !gone.is_drained {
            self.by_handle.remove(&gone.handle);
            self.endpoint.handle_event(gone.handle, EndpointEvent::drained());
        }
        self.share_memory();
    }

    fn touch(&mut self, link: LinkId) {
        if let Some(known) = self.links.get_mut(&link) {
            if !known.is_dirty {
                known.is_dirty = true;
                self.dirty.push(link);
            }
        }
    }

    /// Returns whether any connection has events to poll or packets to transmit.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// When `poll` is to be called at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Let time pass, and append what has happened.
    pub fn poll(&mut self, now: Instant, events: &mut Vec<Event>) {
        while let Some((due, link)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, link));
            if let Some(known) = self.links.get_mut(&link) {
                known.due = None;
                known.connection.handle_timeout(now);
            }
            self.touch(link);
        }
        for index in 0..self.dirty.len() {
            let Some(link) = self.dirty.get(index).copied() else { break };
            self.poll_link(link, now, events);
        }
    }

    fn poll_link(&mut self, link: LinkId, now: Instant, events: &mut Vec<Event>) {
        let Some(known) = self.links.get_mut(&link) else { return };
        while let Some(event) = known.connection.poll_endpoint_events() {
            if event.is_drained() {
                known.is_drained = true;
                self.by_handle.remove(&known.handle);
            }
            if let Some(answer) = self.endpoint.handle_event(known.handle, event) {
                known.connection.handle_event(answer);
            }
        }
        if !known.is_connected && now - known.opened > HANDSHAKE_TIME {
            events.push(Event::Lost(link));
            return;
        }
        while let Some(event) = known.connection.poll() {
            match event {
                QuicEvent::Connected => {
                    known.is_connected = true;
                    let data = known.connection.crypto_session().handshake_data();
                    if let Some(greeting) = data.and_then(|data| data.downcast::<Greeting>().ok()) {
                        known.largest_message = known.largest_message.min(greeting.largest_message.into());
                    }
                    events.push(Event::Connected(link));
                }
                QuicEvent::ConnectionLost { .. } => events.push(Event::Lost(link)),
                QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = known.connection.streams().accept(dir) {
                        events.push(Event::Opened(StreamKey { link, id }));
                    }
                }
                QuicEvent::Stream(StreamEvent::Readable { id }) => events.push(Event::Readable(StreamKey { link, id })),
                QuicEvent::Stream(StreamEvent::Writable { id }) => events.push(Event::Writable(StreamKey { link, id })),
                QuicEvent::Stream(StreamEvent::Stopped { id, .. }) => {
                    events.push(Event::Stopped(StreamKey { link, id }));
                }
                _ => {}
            }
        }
    }

    /// Give the messages of all links that may be sent by now to `send`, which says whether there is room for more.
    pub fn transmit(&mut self, now: Instant, mut send: impl FnMut(LinkId, &Message<'_>) -> bool) {
        for link in std::mem::take(&mut self.dirty) {
            let Some(known) = self.links.get_mut(&link) else { continue };
            known.is_dirty = false;
            let mut has_room = true;
            while has_room {
                self.buffer.clear();
                let Some(train) = known.connection.poll_transmit(now, TRAIN, &mut self.buffer) else { break };
                let packets = self.buffer.get(..train.size).unwrap_or_default();
                for packet in packets.chunks(train.segment_size.unwrap_or(train.size).max(1)) {
                    for message in known.splitter.messages(packet, known.largest_message).into_iter().flatten() {
                        has_room = send(link, &message);
                    }
                }
            }
            let due = known.connection.poll_timeout();
            let due = if known.is_connected { due } else { due.map(|due| due.min(known.opened + HANDSHAKE_TIME)) };
            if due != known.due {
                if let Some(before) = known.due {
                    self.timers.remove(&(before, link));
                }
                self.timers.extend(due.map(|due| (due, link)));
                known.due = due;
            }
            if !has_room {
                self.touch(link);
            }
        }
    }

    // Streams

    /// Open a stream; None when there are as many as the other end allows, or no connection.
    pub fn open(&mut self, link: LinkId) -> Option<StreamKey> {
        let known = self.links.get_mut(&link).filter(|known| known.is_connected)?;
        let id = known.connection.streams().open(Dir::Bi)?;
        Some(StreamKey { link, id })
    }

    /// How many streams the other end has open.
    pub fn open_streams(&mut self, link: LinkId) -> u64 {
        self.links.get_mut(&link).map_or(0, |known| known.connection.streams().remote_open_streams(Dir::Bi))
    }

    /// Read what there is, so many bytes at most.
    pub fn read(&mut self, key: StreamKey, most: usize) -> Read {
        let Some(known) = self.links.get_mut(&key.link) else { return Read::Reset };
        let mut stream = known.connection.recv_stream(key.id);
        let Ok(mut chunks) = stream.read(true) else { return Read::Reset };
        let read = match chunks.next(most) {
            Ok(Some(chunk)) => Read::Data(chunk.bytes),
            Ok(None) => Read::End,
            Err(ReadError::Blocked) => Read::Nothing,
            Err(ReadError::Reset(_)) => Read::Reset,
        };
        if chunks.finalize().should_transmit() {
            self.touch(key.link);
        }
        read
    }

    /// Write from the front of `data`; what is left in it was not taken.
    pub fn write(&mut self, key: StreamKey, data: &mut Bytes) -> Write {
        let Some(known) = self.links.get_mut(&key.link) else { return Write::Stopped };
        let mut stream = known.connection.send_stream(key.id);
        let outcome = loop {
            if data.is_empty() {
                break Write::Taken;
            }
            let mut rest = [std::mem::take(data)];
            let written = stream.write_chunks(&mut rest);
            let [rest] = rest;
            *data = rest;
            match written {
                Ok(_) => {}
                Err(WriteError::Blocked) => break Write::Blocked,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break Write::Stopped,
            }
        };
        self.touch(key.link);
        outcome
    }

    /// Say that nothing follows what was written.
    pub fn finish(&mut self, key: StreamKey) {
        if let Some(known) = self.links.get_mut(&key.link) {
            let _ = known.connection.send_stream(key.id).finish(); // stopped or reset already
            self.touch(key.link);
        }
    }

    /// Want no more of what the other end sends.
    pub fn stop(&mut self, key: StreamKey) {
        if let Some(known) = self.links.get_mut(&key.link) {
            let _ = known.connection.recv_stream(key.id).stop(VarInt::from_u32(0)); // it has ended already
            self.touch(key.link);
        }
    }

    /// Break both directions off.
    pub fn reset(&mut self, key: StreamKey) {
        if let Some(known) = self.links.get_mut(&key.link) {
            let _ = known.connection.send_stream(key.id).reset(VarInt::from_u32(0));
            let _ = known.connection.recv_stream(key.id).stop(VarInt::from_u32(0));
            self.touch(key.link);
        }
    }
}
