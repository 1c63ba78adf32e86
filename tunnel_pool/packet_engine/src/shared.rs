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
    Configure(Settings),
    SetExitRules(ExitRules),
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
    SetExit(u32, Box<Exit>),
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
    /// Lead a SOCKS5 client's TCP connection through a circuit of the lane to a destination (RFC 1928 encoding).
    OpenStream {
        socket: OwnedFd,
        lane: Lane,
        destination: Vec<u8>,
        /// What the client has sent already.
        early: Vec<u8>,
    },
    /// The answer to `Event::Resolve`.
    Resolved {
        number: u32,
        ip: Option<IpAddr>,
    },
    /// No client will connect to the guests that are known so.
    RefuseGuest(u32),
    /// This association gets what nobody of its lane asked for.
    SetUsual(u32),
    /// What strangers send over this circuit of ours is the main process' to look at.
    Announce(u32),
    ExitAnnounced(u32),
    /// What an association's client sends to a destination (RFC 1928 encoding) goes over this circuit from now on.
    Pin {
        association: u32,
        destination: Vec<u8>,
        circuit_id: u32,
    },
    /// A datagram of an association's client that did not come by the association's socket.
    ClientDatagram {
        association: u32,
        datagram: Vec<u8>,
    },
    SetHandshakes {
        per_s: u32,
        per_source_per_s: u32,
    },
    /// Of the node, in memory that its children share.
    SetLimits {
        memory: SharedWords,
        slot: u8,
    },
    Stop,
}

/// Between the engine's thread and Python's.
pub struct Shared {
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
