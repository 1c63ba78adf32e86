//! Why datagrams are dropped: one counter per reason, the names shared with the Python engine.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($name:ident = $text:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason { $($name),* }

        const ALL: &[DropReason] = &[$(DropReason::$name),*];

        impl DropReason {
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text),* }
            }
        }

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
    CellMalformed = "cell_malformed",
    CellNotDecrypted = "cell_not_decrypted",
    CellNotEncrypted = "cell_not_encrypted",
    CellRelayEarlyMissing = "cell_relay_early_missing",
    CellRelayEarlyTooMany = "cell_relay_early_too_many",
    CellReplayed = "cell_replayed",
    CellDataMalformed = "cell_data_malformed",
    CellTooLarge = "cell_too_large",
    PacketUnknownPrefix = "packet_unknown_prefix",
    PythonQueueFull = "python_queue_full",
    UnknownCircuit = "unknown_circuit",
    CircuitNotReady = "circuit_not_ready",
    CircuitForeignSource = "circuit_foreign_source",
    ExitContentRefused = "exit_content_refused",
    ExitDestinationRefused = "exit_destination_refused",
    ExitNetworkDenied = "exit_network_denied",
    ExitPortDenied = "exit_port_denied",
    ExitUnanswered = "exit_unanswered",
    ExitTooManyDestinations = "exit_too_many_destinations",
    ExitNewDestinationsTooFast = "exit_new_destinations_too_fast",
    ExitNotOffered = "exit_not_offered",
    ExitForeignSource = "exit_foreign_source",
    ExitStranger = "exit_stranger",
    ExitStrangersTooFast = "exit_strangers_too_fast",
    ExitTooManyMessages = "exit_too_many_messages",
    ExitNoIpv4Socket = "exit_no_ipv4_socket",
    ExitNoIpv6Socket = "exit_no_ipv6_socket",
    ExitNoListener = "exit_no_listener",
    UdpReceiveError = "udp_receive_error",
    UdpSendFull = "udp_send_full",
    UdpSendError = "udp_send_error",
    UdpSendNoAddress = "udp_send_no_address",
    Socks5ForeignSource = "socks5_foreign_source",
    Socks5Malformed = "socks5_malformed",
    NoCircuit = "no_circuit",
    DatagramTooLarge = "datagram_too_large",
    DataInMalformed = "data_in_malformed",
    DataInUnknownCircuit = "data_in_unknown_circuit",
    DataOutFull = "data_out_full",
    HandshakesOfSource = "handshakes_of_source",
    HandshakesTooMany = "handshakes_too_many",
    StrangersTooFast = "strangers_too_fast",
    StreamContentRefused = "stream_content_refused",
    StreamFailedTooOften = "stream_failed_too_often",
    StreamMalformed = "stream_malformed",
    StreamNameRefused = "stream_name_refused",
    StreamNoCircuit = "stream_no_circuit",
    StreamNotOffered = "stream_not_offered",
    StreamTimedOut = "stream_timed_out",
    StreamTooFast = "stream_too_fast",
    StreamTooMany = "stream_too_many",
    LimitDelay = "limit_delay",
    LimitQueueFull = "limit_queue_full",
}

impl Counters {
    /// There is one writer, the engine's thread; readers may be anywhere.
    pub fn count(&self, reason: DropReason) {
        self.add(reason, 1);
    }

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

    pub fn stream_opened(&self) {
        let StreamStats { open, all, .. } = &self.streams;
        open.store(open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        all.store(all.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn stream_ended(&self) {
        let open = &self.streams.open;
        open.store(open.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

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

    pub fn sent(&self, bytes: usize) {
        self.up.store(self.up.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    pub fn received(&self, bytes: usize) {
        self.down.store(self.down.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    pub fn active(&self, now_ms: u64) {
        self.active_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Bytes up, bytes down, milliseconds since the epoch of the last activity (0: none yet).
    pub fn read(&self) -> (u64, u64, u64) {
        (self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed), self.active_ms.load(Ordering::Relaxed))
    }
}
