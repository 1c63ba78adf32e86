//! A stream joined with a TCP connection: bytes go both ways as fast as the slower side takes them.
//!
//! The end of one direction is handed on and leaves the other open; a reset on one side is a reset on the other.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::clients::Lane;
use crate::streams::inspection::{Inspection, Verdict};
use crate::streams::opening::{self, Reply, Wish};
use crate::streams::quic::{Quic, Read, StreamKey, Write};

/// What moves in each direction before others have their turn.
const TURN_BYTES: usize = 256 << 10;
/// Length in bytes of the buffer that `Bridge::turn` reads the socket into.
pub const SCRATCH_BYTES: usize = 64 << 10;

/// How a turn ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing more can move now.
    Waits,
    /// More could move; others come first.
    Goes,
    /// Both directions have ended.
    Done,
    /// One side broke it off.
    Broken,
    /// The bytes may not pass (inspection.rs).
    Refused,
    /// The exit does not let the client go where it wants to: another exit may.
    Forbidden,
}

/// Something that ends a direction before its time.
enum Stop {
    Broken,
    Refused,
    Forbidden,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Stop::Broken
    }
}

type Outcome<T> = Result<T, Stop>;

/// One direction's bytes that were read and not yet written.
#[derive(Default)]
struct Pending {
    bytes: Bytes,
    /// Nothing follows what is there.
    has_ended: bool,
    /// The receiver knows it.
    is_closed: bool,
}

/// What a SOCKS5 client wants.
pub struct Asked {
    /// The lane of the client.
    pub lane: Lane,
    /// RFC 1928 encoding.
    pub destination: Vec<u8>,
    /// What it has sent already.
    pub early: Vec<u8>,
    /// How many exits may still be asked.
    pub tries: u8,
}

/// A stream and the TCP connection that it is joined with. The bridge owns the connection, `Quic` owns the stream.
pub struct Bridge {
    /// The stream.
    pub key: StreamKey,
    socket: TcpStream,
    /// By the last report of the kernel, which tells of changes alone.
    can_read: bool,
    can_write: bool,
    to_stream: Pending,
    to_socket: Pending,
    /// The answer to our request has not come yet; it is the first byte of the stream.
    awaits_reply: bool,
    /// What a client asked for, as long as another exit may be asked for it.
    asked: Option<Asked>,
    /// At an exit: the socket is that of a caller at this address, who has spoken first and knows nothing of requests.
    caller: Option<IpAddr>,
    /// At an exit: the address that it has connected to, until what passes was judged.
    pub unjudged: Option<IpAddr>,
    /// At our end: what the guest is known as, if he has called.
    pub guest: Option<u32>,
    /// At an exit: what may pass. Bytes that are not judged yet are kept.
    inspection: Option<Inspection>,
    kept: BytesMut,
    /// The time at which bytes last moved to the socket or to the stream.
    pub active: Instant,
    /// What the socket has sent and received since somebody took these.
    sent_bytes: usize,
    received_bytes: usize,
}

impl Bridge {
    fn new(key: StreamKey, socket: TcpStream, now: Instant) -> Self {
        Self {
            key,
            socket,
            can_read: true,
            can_write: true,
            to_stream: Pending::default(),
            to_socket: Pending::default(),
            awaits_reply: false,
            asked: None,
            caller: None,
            unjudged: None,
            guest: None,
            inspection: None,
            kept: BytesMut::new(),
            active: now,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// At the client's end: the SOCKS5 client's connection, which is led to where it `asked` to go.
    pub fn of_client(key: StreamKey, socket: TcpStream, asked: Asked, now: Instant) -> Self {
        let mut bridge = Self::new(key, socket, now);
        bridge.ask(key, asked);
        bridge
    }

    /// Ask over this stream from now on; nothing has come from the client since.
    pub fn ask(&mut self, key: StreamKey, asked: Asked) {
        let request = [opening::request(Wish::Connect, &asked.destination), asked.early.clone()].concat();
        self.to_stream = Pending { bytes: request.into(), ..Pending::default() };
        (self.key, self.asked, self.awaits_reply) = (key, Some(asked), true);
    }

    /// What the client asked for, if another exit may be asked.
    pub fn take_asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// Tell the client that it may not go there.
    pub fn forbid(&mut self) {
        self.to_socket.bytes = Bytes::copy_from_slice(&Reply::NotAllowed.to_client());
        (self.to_socket.has_ended, self.to_stream.is_closed) = (true, true);
    }

    /// At the exit: the connection that was made, to which `early` was sent before it was there.
    pub fn of_exit(key: StreamKey, socket: TcpStream, inspection: Inspection, early: &[u8], now: Instant) -> Self {
        let mut bridge = Self::new(key, socket, now);
        bridge.to_stream.bytes = Bytes::from_static(&[Reply::Succeeded as u8]);
        bridge.inspection = Some(inspection);
        bridge.kept.extend_from_slice(early);
        bridge
    }

    /// At the exit: the connection of a caller whose first bytes have passed `inspection`, and are sent with the request.
    pub fn of_caller(
        key: StreamKey,
        (socket, from): (TcpStream, IpAddr),
        inspection: Inspection,
        said: Bytes,
        now: Instant,
    ) -> Self {
        let mut bridge = Self::new(key, socket, now);
        (bridge.to_stream.bytes, bridge.awaits_reply) = (said, true);
        bridge.inspection = Some(inspection);
        bridge.caller = Some(from);
        bridge
    }

    /// Between a client of ours and the other end of its circuit, which has opened the stream: both have sent
    /// something early, and both wait for a reply.
    pub fn of_guest(
        key: StreamKey,
        socket: TcpStream,
        inspection: Inspection,
        from_stream: &[u8],
        from_client: &[u8],
        now: Instant,
    ) -> Self {
        let mut bridge = Self::of_exit(key, socket, inspection, from_stream, now);
        bridge.to_stream.bytes = Bytes::from([&[Reply::Succeeded as u8], from_client].concat());
        bridge.to_socket.bytes = Bytes::copy_from_slice(&Reply::Succeeded.to_client());
        bridge
    }

    /// Whether what both sides begin with has been judged, or need not be.
    pub fn is_judged(&self) -> bool {
        self.inspection.is_none()
    }

    /// Whether what the other end of the stream sends goes on to the socket.
    fn has_passed(&self) -> bool {
        self.inspection.as_ref().is_none_or(|judge| judge.has_spoken() && self.caller.is_none())
    }

    /// The address of the caller whose socket it is.
    pub fn caller(&self) -> Option<IpAddr> {
        self.caller
    }

    /// How many bytes the socket has sent and received since this was called before.
    pub fn take_bytes(&mut self) -> (usize, usize) {
        (std::mem::take(&mut self.sent_bytes), std::mem::take(&mut self.received_bytes))
    }

    /// Returns the socket, and drops bytes that were not moved yet.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Returns the socket, to be watched.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The kernel says that the socket can be read or written.
    pub fn is_ready(&mut self) {
        (self.can_read, self.can_write) = (true, true);
    }

    /// The other end of the stream wants no more; what it has sent may still come, as a refusal's code.
    pub fn is_stopped(&mut self) {
        self.to_stream = Pending { bytes: Bytes::new(), has_ended: true, is_closed: true };
    }

    /// Move what can be moved.
    pub fn turn(&mut self, quic: &mut Quic, scratch: &mut [u8], now: Instant) -> Turn {
        let outcome = self.outwards(quic, now).and_then(|goes| Ok(goes | self.inwards(quic, scratch, now)?));
        match outcome {
            Err(Stop::Broken) => Turn::Broken,
            Err(Stop::Refused) => Turn::Refused,
            Err(Stop::Forbidden) => Turn::Forbidden,
            Ok(_) if self.to_socket.is_closed && self.to_stream.is_closed => Turn::Done,
            Ok(true) => Turn::Goes,
            Ok(false) => Turn::Waits,
        }
    }

    /// From the stream to the socket; true if more could move.
    fn outwards(&mut self, quic: &mut Quic, now: Instant) -> Outcome<bool> {
        let mut moved = 0;
        while moved < TURN_BYTES {
            if self.to_socket.bytes.is_empty() {
                if self.to_socket.has_ended {
                    if !self.to_socket.is_closed {
                        self.to_socket.is_closed = true;
                        let _ = self.socket.shutdown(Shutdown::Write); // it may be gone already
                    }
                    return Ok(false);
                }
                if !self.read_stream(quic)? {
                    return Ok(false);
                }
                continue;
            }
            if !self.can_write {
                return Ok(false);
            }
            match self.socket.write(&self.to_socket.bytes) {
                Ok(written) => {
                    drop(self.to_socket.bytes.split_to(written));
                    moved += written;
                    self.sent_bytes += written;
                    self.active = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Fetch what the socket is to get next; false when there is nothing now.
    fn read_stream(&mut self, quic: &mut Quic) -> Outcome<bool> {
        let most = if self.awaits_reply { 1 } else { TURN_BYTES };
        let data = match quic.read(self.key, most) {
            Read::Data(data) => data,
            Read::Nothing => return self.judge(),
            Read::End => {
                self.to_socket.has_ended = true;
                // What was never judged may not pass.
                return if self.has_passed() { Ok(true) } else { Err(Stop::Broken) };
            }
            Read::Reset => return Err(Stop::Broken),
        };
        if self.awaits_reply {
            let reply = Reply::of(data.first().copied().unwrap_or(Reply::GeneralFailure as u8));
            self.awaits_reply = false;
            if self.caller.is_some() {
                return if reply == Reply::Succeeded { Ok(true) } else { Err(Stop::Broken) };
            }
            if reply == Reply::NotAllowed && self.asked.is_some() {
                return Err(Stop::Forbidden);
            }
            self.asked = None;
            self.to_socket.bytes = Bytes::copy_from_slice(&reply.to_client());
            if reply != Reply::Succeeded {
                (self.to_socket.has_ended, self.to_stream.is_closed) = (true, true);
                quic.reset(self.key);
            }
        } else if self.has_passed() {
            self.to_socket.bytes = data;
        } else {
            self.kept.extend_from_slice(&data);
            return self.judge();
        }
        Ok(true)
    }

    /// Let what was kept go to the socket, if it may; true if it did.
    fn judge(&mut self) -> Outcome<bool> {
        if self.kept.is_empty() || self.has_passed() {
            return Ok(false);
        }
        let Some(inspection) = &mut self.inspection else { return Ok(false) };
        let verdict =
            if self.caller.is_some() { inspection.of_answer(&self.kept) } else { inspection.of_client(&self.kept) };
        match verdict {
            Verdict::Refused => Err(Stop::Refused),
            Verdict::Undecided => Ok(false),
            Verdict::Passes => {
                self.to_socket.bytes = self.kept.split().freeze();
                if self.caller.is_some() {
                    self.inspection = None; // the caller was judged before
                }
                Ok(true)
            }
        }
    }

    /// From the socket to the stream; true if more could move.
    fn inwards(&mut self, quic: &mut Quic, scratch: &mut [u8], now: Instant) -> Outcome<bool> {
        let mut moved = 0;
        while moved < TURN_BYTES {
            if !self.to_stream.bytes.is_empty() {
                let before = self.to_stream.bytes.len();
                let write = quic.write(self.key, &mut self.to_stream.bytes);
                let written = before - self.to_stream.bytes.len();
                moved += written;
                if written > 0 {
                    self.active = now;
                }
                match write {
                    Write::Taken => {}
                    Write::Blocked => return Ok(false),
                    Write::Stopped => return Err(Stop::Broken),
                }
            }
            if self.to_stream.has_ended {
                if !self.to_stream.is_closed {
                    self.to_stream.is_closed = true;
                    quic.finish(self.key);
                }
                return Ok(false);
            }
            // A client that was not answered yet has nothing to say; what comes to an exit's connection waits until the
            // client has spoken. A caller has been judged.
            let has_turn = self.caller.is_some() || (self.has_passed() && !self.awaits_reply);
            if !self.can_read || self.to_stream.is_closed || !has_turn {
                return Ok(false);
            }
            self.read_socket(scratch)?;
        }
        Ok(true)
    }

    fn read_socket(&mut self, scratch: &mut [u8]) -> Outcome<()> {
        match self.socket.read(scratch) {
            Ok(0) => self.to_stream.has_ended = true,
            Ok(count) => {
                self.received_bytes += count;
                let data = scratch.get(..count).unwrap_or_default();
                let Some(inspection) = self.inspection.as_mut().filter(|_| self.caller.is_none()) else {
                    self.to_stream.bytes = Bytes::copy_from_slice(data);
                    return Ok(());
                };
                self.kept.extend_from_slice(data);
                match inspection.of_answer(&self.kept) {
                    Verdict::Refused => return Err(Stop::Refused),
                    Verdict::Undecided => {}
                    Verdict::Passes => {
                        self.to_stream.bytes = self.kept.split().freeze();
                        self.inspection = None; // both sides have passed
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_read = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
