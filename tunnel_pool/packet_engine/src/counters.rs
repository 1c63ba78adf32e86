//! Why datagrams are dropped: one counter per reason, the names shared with the Python engine.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// A reason to drop or refuse something; the name says what was dropped, then why.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason { $($(#[$doc])* $name),* }

        const ALL: &[DropReason] = &[$(DropReason::$name),*];

        impl DropReason {
            /// Returns the name that both engines count the reason under (rpc/drop_reasons.py).
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text),* }
            }
        }

        /// The number of drops by reason since the engine started, and the datagrams of strangers.
        #[derive(Default)]
        #[allow(non_snake_case)]
        pub struct Counters {
            $($name: AtomicU64,)*
            strangers: AtomicU64,
            stranger_bytes: AtomicU64,
        }

        impl Counters {
            fn of(&self, reason: DropReason) -> &AtomicU64 {
                match reason { $(DropReason::$name => &self.$name),* }
            }
        }
    };
}

reasons! {
    /// A datagram is shorter than a prefix, or a cell has no message.
    CellMalformed = "cell_malformed",
    /// A layer of a cell is too short or not authentic, or nobody here has keys for its circuit id.
    CellNotDecrypted = "cell_not_decrypted",
    /// A cell in the clear is to be relayed, or holds a message that has to be encrypted.
    CellNotEncrypted = "cell_not_encrypted",
    /// A cell holds EXTEND and has no relay_early flag, or the settings allow no such cells.
    CellRelayEarlyMissing = "cell_relay_early_missing",
    /// A cell to be relayed has the relay_early flag, and its circuit has had as many cells before as may have the
    /// flag.
    CellRelayEarlyTooMany = "cell_relay_early_too_many",
    /// A layer's counter was used before, or lags too far behind the newest one.
    CellReplayed = "cell_replayed",
    /// A cell's data message can't be parsed.
    CellDataMalformed = "cell_data_malformed",
    /// A message with its layers and header does not fit the buffer, or a UDP datagram.
    CellTooLarge = "cell_too_large",
    /// A datagram has the prefix of no overlay that listens on the tunnels' socket.
    PacketUnknownPrefix = "packet_unknown_prefix",
    /// The queue of packets for py-ipv8 is full.
    PythonQueueFull = "python_queue_full",
    /// The circuit of a datagram or a cell is not in the tables, or no longer.
    UnknownCircuit = "unknown_circuit",
    /// A circuit of ours lacks a hop, or the keys of its other end.
    CircuitNotReady = "circuit_not_ready",
    /// Data for a circuit of ours came from another address than its first hop's, or from an exit that poses as the
    /// other end of an end-to-end circuit.
    CircuitForeignSource = "circuit_foreign_source",
    /// A datagram at an exit is of no protocol that may pass there.
    ExitContentRefused = "exit_content_refused",
    /// A datagram or connection of an exit is for an address that no exit may send to (policy.rs).
    ExitDestinationRefused = "exit_destination_refused",
    /// A datagram or connection of an exit is for a network that the operator's rules deny.
    ExitNetworkDenied = "exit_network_denied",
    /// A datagram or connection of an exit is for a port that the operator's rules deny.
    ExitPortDenied = "exit_port_denied",
    /// A circuit has sent as many datagrams to a destination as it may to one that never answered.
    ExitUnanswered = "exit_unanswered",
    /// A circuit has as many destinations as it may have at a time.
    ExitTooManyDestinations = "exit_too_many_destinations",
    /// A circuit asks for new destinations faster than the operator's rules allow.
    ExitNewDestinationsTooFast = "exit_new_destinations_too_fast",
    /// A datagram or connection is to leave from a node that serves as neither exit nor relay.
    ExitNotOffered = "exit_not_offered",
    /// A message for Python, or a circuit's first datagram, came from another IP address than that of the circuit's
    /// previous hop.
    ExitForeignSource = "exit_foreign_source",
    /// A stranger has sent or connected to a circuit that was not announced, or at an exit that lets no strangers in.
    ExitStranger = "exit_stranger",
    /// Strangers send or connect to a circuit faster than they may.
    ExitStrangersTooFast = "exit_strangers_too_fast",
    /// A circuit that ends here carries more messages a second than Python takes of one.
    ExitTooManyMessages = "exit_too_many_messages",
    /// An exit could not open its socket for IPv4.
    ExitNoIpv4Socket = "exit_no_ipv4_socket",
    /// An exit could not open its socket for IPv6.
    ExitNoIpv6Socket = "exit_no_ipv6_socket",
    /// A circuit's door could not be opened, or its listener failed.
    ExitNoListener = "exit_no_listener",
    /// The kernel refused to receive from a socket.
    UdpReceiveError = "udp_receive_error",
    /// A socket's send buffer is full.
    UdpSendFull = "udp_send_full",
    /// The kernel refused to send a datagram, or its socket is gone.
    UdpSendError = "udp_send_error",
    /// A packet is for port 0; Python counts what is for no IP address here, too.
    UdpSendNoAddress = "udp_send_no_address",
    /// A datagram for an association is not from its client, or the association is gone.
    Socks5ForeignSource = "socks5_foreign_source",
    /// A client's datagram is no SOCKS5 datagram, or is a fragment (RFC 1928 section 7).
    Socks5Malformed = "socks5_malformed",
    /// No circuit is ready for a client's datagram, or none leads to the other end that the datagram is for.
    NoCircuit = "no_circuit",
    /// A packet of uTP is too large to travel in one packet, and its sender has to learn so (probes.rs).
    DatagramTooLarge = "datagram_too_large",
    /// A frame of the data stream has a malformed address.
    DataInMalformed = "data_in_malformed",
    /// A frame of the data stream names a circuit that is gone.
    DataInUnknownCircuit = "data_in_unknown_circuit",
    /// Too many frames wait for the main process to read the data stream.
    DataOutFull = "data_out_full",
    /// One IP address sends handshakes faster than it may.
    HandshakesOfSource = "handshakes_of_source",
    /// All nodes together send handshakes faster than they may; neighbours have half of the limit to themselves.
    HandshakesTooMany = "handshakes_too_many",
    /// Strangers send over an announced circuit of ours faster than the main process takes it.
    StrangersTooFast = "strangers_too_fast",
    /// The first bytes of a stream are of no protocol that may pass (streams/inspection.rs).
    StreamContentRefused = "stream_content_refused",
    /// Too many connections to a destination, or of a circuit or a previous hop, failed or are not judged yet.
    StreamFailedTooOften = "stream_failed_too_often",
    /// A stream message can't be read or belongs to no connection, or a stream does not begin with a request.
    StreamMalformed = "stream_malformed",
    /// A stream of TLS is for a name that the operator's rules don't list, or for an address where they list names.
    StreamNameRefused = "stream_name_refused",
    /// No circuit of the client's lane carries streams to its destination, and none is about to.
    StreamNoCircuit = "stream_no_circuit",
    /// An exit lets no stream go to this port, or the other end may not open streams over this circuit.
    StreamNotOffered = "stream_not_offered",
    /// A stream waited too long for a circuit, a connection or its first bytes, or was idle for too long.
    StreamTimedOut = "stream_timed_out",
    /// A circuit, or all circuits of a previous hop, ask for streams faster than they may.
    StreamTooFast = "stream_too_fast",
    /// There are as many connections as there may be: in all, of a circuit, of a previous hop or of a caller's address.
    StreamTooMany = "stream_too_many",
    /// A datagram has waited for a limit as long as it may, or a cell for Python would have to wait longer.
    LimitDelay = "limit_delay",
    /// The queue of a circuit's direction is full.
    LimitQueueFull = "limit_queue_full",
}

impl Counters {
    /// There is one writer, the engine's thread; readers may be anywhere.
    pub fn count(&self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Adds to a reason's counter. Only the engine's thread may call it: the counter is read and then stored.
    pub fn add(&self, reason: DropReason, number: u64) {
        let counter = self.of(reason);
        counter.store(counter.load(Ordering::Relaxed) + number, Ordering::Relaxed);
    }

    /// A stranger's datagram came in at an exit.
    pub fn let_in(&self, bytes: usize) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
        self.stranger_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The datagrams of strangers that came in at exits, and their bytes.
    pub fn strangers(&self) -> (u64, u64) {
        (self.strangers.load(Ordering::Relaxed), self.stranger_bytes.load(Ordering::Relaxed))
    }

    /// Returns a reason's counter; any thread may call it.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.of(reason).load(Ordering::Relaxed)
    }

    /// Name and value of each counter that is not zero.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        ALL.iter().map(|reason| (reason.name(), self.get(*reason))).filter(|(_, value)| *value > 0)
    }
}

/// What a route carried; read by Python, written by the engine's thread alone.
#[derive(Debug, Default)]
pub struct RouteStats {
    up: AtomicU64,
    down: AtomicU64,
    active_ms: AtomicU64,
    streams: StreamStats,
}

/// The streams of a circuit.
#[derive(Debug, Default)]
struct StreamStats {
    are_spoken: AtomicU64,
    open: AtomicU64,
    all: AtomicU64,
    round_trip_us: AtomicU64,
}

impl RouteStats {
    /// Whether the other end speaks streams.
    pub fn streams_spoken(&self, are_spoken: bool) {
        self.streams.are_spoken.store(u64::from(are_spoken), Ordering::Relaxed);
    }

    /// Counts one more stream, among the open ones and in all.
    pub fn stream_opened(&self) {
        let StreamStats { open, all, .. } = &self.streams;
        open.store(open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        all.store(all.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts one open stream fewer.
    pub fn stream_ended(&self) {
        let open = &self.streams.open;
        open.store(open.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Sets the round trip of the circuit's QUIC connection.
    pub fn round_trip(&self, microseconds: u64) {
        self.streams.round_trip_us.store(microseconds, Ordering::Relaxed);
    }

    /// Whether the other end speaks streams, how many are open, how many there were, and the last round trip in
    /// microseconds.
    pub fn read_streams(&self) -> (bool, u64, u64, u64) {
        let StreamStats { are_spoken, open, all, round_trip_us } = &self.streams;
        let [spoken, open, all, round_trip] =
            [are_spoken, open, all, round_trip_us].map(|word| word.load(Ordering::Relaxed));
        (spoken != 0, open, all, round_trip)
    }

    /// Counts bytes that were sent.
    pub fn sent(&self, bytes: usize) {
        self.up.store(self.up.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were received.
    pub fn received(&self, bytes: usize) {
        self.down.store(self.down.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// Sets the time of the last activity, in milliseconds since the epoch.
    pub fn active(&self, now_ms: u64) {
        self.active_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Bytes up, bytes down, milliseconds since the epoch of the last activity (0: none yet).
    pub fn read(&self) -> (u64, u64, u64) {
        (self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed), self.active_ms.load(Ordering::Relaxed))
    }
}
