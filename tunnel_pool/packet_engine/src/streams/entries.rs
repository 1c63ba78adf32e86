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
    /// The client's connection; its calls do not block.
    pub socket: TcpStream,
    /// The request of the client.
    pub asked: Asked,
}

/// A stream that the other end has opened, before its connection is there.
pub(super) struct Opening {
    /// The stream.
    pub(super) key: StreamKey,
    /// What came of the stream: the request, and what the other end sends after it.
    pub(super) bytes: Vec<u8>,
    /// Length of the request at the start of `bytes`; 0 until the request is whole.
    pub(super) request_bytes: usize,
    /// The step that is under way.
    pub(super) step: Step,
    /// The time at which the stream was opened or, with `Step::Connecting`, the connection was begun.
    pub(super) since: Instant,
}

/// The steps of a stream before it is joined with a connection.
pub(super) enum Step {
    /// The request is not whole.
    Asked,
    /// Python looks a name up.
    Resolving {
        /// The port to connect to.
        port: u16,
    },
    /// An exit's connection to the destination is being established.
    Connecting {
        /// The connection; its calls do not block.
        socket: TcpStream,
        /// The destination's address.
        to: SocketAddr,
    },
    /// It came over a circuit of ours: a client has to connect to what the guest is known as, too (guests.rs).
    Guest {
        /// The number of the address that the client connects to (ends.rs).
        known_as: u32,
    },
}

/// A connection or a stream that `Service` has under one number.
pub(super) enum Entry {
    /// A SOCKS5 client that waits for a circuit that carries streams, and the time at which it asked.
    Waiting(Client, Instant),
    /// A caller whose first bytes are not judged yet.
    Caller(Box<Caller>),
    /// A stream whose connection is not there yet.
    Opening(Opening),
    /// A stream and its connection.
    Joined(Box<Bridge>),
}

/// Where a circuit can be called.
pub(super) struct Door {
    /// A listener at the port of the circuit's UDP socket; its calls do not block.
    pub(super) listener: TcpListener,
    /// A stream that was opened to find out whether the client takes any, for its first caller.
    pub(super) spare: Option<StreamKey>,
}

/// Who has called, and has not begun as he must.
pub(super) struct Caller {
    /// The circuit, which ends here.
    pub(super) link: LinkId,
    /// The time at which the caller connected.
    pub(super) since: Instant,
    /// The caller's connection; its calls do not block.
    pub(super) socket: TcpStream,
    /// The caller's address.
    pub(super) from: SocketAddr,
    /// The bytes received so far, `MAX_EARLY_BYTES` at most.
    pub(super) bytes: Vec<u8>,
    /// The judge of these bytes.
    pub(super) inspection: Inspection,
}

/// Answer a SOCKS5 client that gets no stream.
pub(super) fn turn_away(mut socket: TcpStream, reply: Reply) {
    let _ = socket.write(&reply.to_client()); // it may be gone; a new socket has room for ten bytes
}
