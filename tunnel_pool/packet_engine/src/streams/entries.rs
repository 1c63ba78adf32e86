//! What connections and streams there are, before both sides are joined and after, and what they are watched by.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use crate::streams::bridge::{Asked, Bridge};
use crate::streams::inspection::Inspection;
use crate::streams::opening::Reply;
use crate::streams::quic::{LinkId, StreamKey};

/// All connections of this child.
pub(super) const MAX_CONNECTIONS: usize = 4096;
/// What a client may send before its connection is there, and a caller before he was judged.
pub(super) const MAX_EARLY_BYTES: usize = 4 << 10;

/// What the sockets are watched by.
pub trait Watch {
    /// Report changes of a connection, under its number.
    fn watch(&self, socket: &TcpStream, number: u32) -> io::Result<()>;

    /// Report that somebody connects to a circuit, as long as he waits.
    fn watch_door(&self, listener: &TcpListener, circuit_id: u32) -> io::Result<()>;
}

/// A SOCKS5 client that has asked for a connection.
pub struct Client {
    pub socket: TcpStream,
    pub asked: Asked,
}

/// A stream that the other end has opened, before its connection is there.
pub(super) struct Opening {
    pub(super) key: StreamKey,
    /// What came of the stream: the request, and what the other end sends after it.
    pub(super) bytes: Vec<u8>,
    pub(super) request_bytes: usize,
    pub(super) step: Step,
    pub(super) since: Instant,
}

pub(super) enum Step {
    /// The request is not whole.
    Asked,
    /// Python looks a name up.
    Resolving {
        port: u16,
    },
    Connecting {
        socket: TcpStream,
        to: SocketAddr,
    },
    /// It came over a circuit of ours: a client has to connect to what the guest is known as, too (guests.rs).
    Guest {
        known_as: u32,
    },
}

pub(super) enum Entry {
    Waiting(Client, Instant),
    Caller(Box<Caller>),
    Opening(Opening),
    Joined(Box<Bridge>),
}

/// Where a circuit can be called.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    /// A stream that was opened to find out whether the client takes any, for its first caller.
    pub(super) spare: Option<StreamKey>,
}

/// Who has called, and has not begun as he must.
pub(super) struct Caller {
    pub(super) link: LinkId,
    pub(super) since: Instant,
    pub(super) socket: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) inspection: Inspection,
}

/// Answer a SOCKS5 client that gets no stream.
pub(super) fn turn_away(mut socket: TcpStream, reply: Reply) {
    let _ = socket.write(&reply.to_client()); // it may be gone; a new socket has room for ten bytes
}
