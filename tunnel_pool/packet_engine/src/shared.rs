//! Between the engine's thread and Python's: commands one way, notices the other.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clients::{Association, Lane};
use crate::core::{Event, Settings};
use crate::counters::{Counters, DropReason, RouteStats};
use crate::routes::{Circuit, Exit, Relay};
use crate::rules::ExitRules;
use crate::sys::{EventFd, SharedWords};

/// What Python asks of the engine; carried out in the order asked.
pub enum Command {
    /// Replace the settings.
    Configure(Settings),
    /// Replace the operator's rules, and close or open doors accordingly.
    SetExitRules(ExitRules),
    /// Send a packet of py-ipv8 as it is, by the tunnels' socket.
    SendPacket {
        /// The receiver's address.
        to: SocketAddr,
        /// The whole payload of the datagram.
        packet: Vec<u8>,
    },
    /// Send a message of py-ipv8 in a cell, encrypted for its circuit, relay or exit.
    SendCell {
        /// The neighbour's address.
        to: SocketAddr,
        /// The id for the cell's header, which also selects the keys.
        circuit_id: u32,
        /// Leave the message unencrypted and set the flag in the header, as for CREATE and CREATED.
        plaintext: bool,
        /// The message, which begins with its id.
        message: Vec<u8>,
    },
    /// Let a datagram out of an exit, after Python has resolved the name of its destination.
    ExitSend {
        /// The circuit, which ends here.
        circuit_id: u32,
        /// The resolved destination.
        to: SocketAddr,
        /// The payload of the datagram.
        payload: Vec<u8>,
    },
    /// Add or replace a circuit of ours by its circuit id; the engine's own state of it is kept.
    SetCircuit(u32, Circuit),
    /// Remove a circuit of ours and end its streams; `Event::Orphans` reports its destinations.
    RemoveCircuit(u32),
    /// Add or replace one direction of a relayed circuit by the circuit id that its cells arrive with; the count of
    /// cells is kept.
    SetRelay(u32, Relay),
    /// Remove one direction of a relayed circuit.
    RemoveRelay(u32),
    /// Add or replace a circuit that ends here by its circuit id; the engine's own state of it is kept.
    SetExit(u32, Box<Exit>),
    /// Remove a circuit that ends here, close its sockets and end its streams.
    RemoveExit(u32),
    /// Carry the data stream (rpc/data.py).
    AttachStream {
        /// The descriptor that frames from the main process are read from; its reads do not block.
        input: OwnedFd,
        /// The descriptor that frames for the main process are written to; its writes do not block.
        output: OwnedFd,
    },
    /// Serve an association of the SOCKS5 server, replacing one with the same id.
    AddAssociation {
        /// The id for later commands.
        id: u32,
        /// The association's bound UDP socket, of which the main process has another descriptor.
        socket: OwnedFd,
        /// The lane and the client's address.
        association: Association,
    },
    /// Stop serving an association.
    RemoveAssociation(u32),
    /// Lead a SOCKS5 client's TCP connection through a circuit of the lane to a destination (RFC 1928 encoding).
    OpenStream {
        /// The client's connection, on which the engine also sends the reply (RFC 1928 section 6).
        socket: OwnedFd,
        /// The lane of the client.
        lane: Lane,
        /// Address type, address and port.
        destination: Vec<u8>,
        /// What the client has sent already.
        early: Vec<u8>,
    },
    /// The answer to `Event::Resolve`.
    Resolved {
        /// The number from the event.
        number: u32,
        /// The name's address; None if it has none.
        ip: Option<IpAddr>,
    },
    /// No client will connect to the guests that are known so.
    RefuseGuest(u32),
    /// This association gets what nobody of its lane asked for.
    SetUsual(u32),
    /// What strangers send over this circuit of ours is the main process' to look at.
    Announce(u32),
    /// Let strangers reach this circuit that ends here: it was announced to a tracker by a request that Python made.
    ExitAnnounced(u32),
    /// Open the sockets of this circuit that ends here; `Event::ExitPort` is the answer.
    TellExitPort(u32),
    /// What an association's client sends to a destination (RFC 1928 encoding) goes over this circuit from now on.
    Pin {
        /// The id of the association.
        association: u32,
        /// Address type, address and port.
        destination: Vec<u8>,
        /// A circuit of ours in the association's lane; the command is ignored otherwise.
        circuit_id: u32,
    },
    /// A datagram of an association's client that did not come by the association's socket.
    ClientDatagram {
        /// The id of the association.
        association: u32,
        /// The whole SOCKS5 datagram (RFC 1928 section 7).
        datagram: Vec<u8>,
    },
    /// Limit the handshakes that are passed on to Python: CREATE and EXTEND together, and CREATED apart by the same
    /// numbers.
    SetHandshakes {
        /// Handshakes a second of all nodes together; 0: any number.
        per_s: u32,
        /// Handshakes a second of one IP address; 0: any number.
        per_source_per_s: u32,
    },
    /// Of the node, in memory that its children share.
    SetLimits {
        /// The shared memory, with the layout in limits.rs.
        memory: SharedWords,
        /// The slot of this child.
        slot: u8,
    },
    /// End the engine's thread after this round; datagrams that still wait for a limit are lost.
    Stop,
}

/// Between the engine's thread and Python's.
pub struct Shared {
    /// The counters of drops; the engine's thread writes them.
    pub counters: Arc<Counters>,
    /// Payload bytes of all datagrams of the tunnels' socket; `up` is sent.
    pub wire: RouteStats,
    /// Nobody carries commands out any more.
    ended: AtomicBool,
    commands: Mutex<Vec<Command>>,
    notices: Mutex<Notices>,
    /// Wakes the engine.
    pub wake: EventFd,
    /// Wakes Python.
    pub bell: EventFd,
}

/// What Python hears.
pub enum Notice {
    /// An event that `Core` has reported.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Creates two empty queues. Err if the kernel refuses an eventfd.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            counters: Arc::default(),
            wire: RouteStats::default(),
            ended: AtomicBool::new(false),
            commands: Mutex::default(),
            notices: Mutex::default(),
            wake: EventFd::new()?,
            bell: EventFd::new()?,
        })
    }

    /// After the engine's thread has ended, commands are thrown away.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        lock(&self.commands).clear();
    }

    /// Queues a command and wakes the engine; ignores the command after `end`.
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

    /// Removes and returns all commands, oldest first, and silences `wake`.
    pub fn take_commands(&self) -> Vec<Command> {
        self.wake.silence();
        std::mem::take(&mut *lock(&self.commands))
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

    /// Queues notices and rings the bell; packets beyond `MAX_WAITING_BYTES` are dropped and counted.
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
        self.counters.add(DropReason::PythonQueueFull, refused);
        self.bell.ring();
    }
}
