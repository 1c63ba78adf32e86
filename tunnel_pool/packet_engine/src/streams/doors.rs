//! Callers: strangers who connect by TCP to where a circuit that ends here is found. A part of `Service`.
//!
//! A circuit's door is a listener at the port of its UDP socket, which is what trackers and the DHT are told. It is opened
//! once the circuit was announced, if its client takes calls: if it lets us open streams. Nothing of what a caller sends
//! goes to the client before it was judged (inspection.rs).

use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use bytes::Bytes;
use socket2::{Domain, Socket, Type};

use crate::address::{self, Destination, MAX_ADDRESS_BYTES};
use crate::core::Core;
use crate::counters::DropReason;
use crate::rules::TCP;
use crate::streams::bridge::Bridge;
use crate::streams::entries::{Caller, Door, Entry, Watch, MAX_CONNECTIONS, MAX_EARLY_BYTES};
use crate::streams::inspection::{Inspection, Verdict};
use crate::streams::opening::{self, Wish};
use crate::streams::quic::LinkId;
use crate::streams::service::Service;

/// Callers of one circuit at a time.
const MAX_CALLERS: usize = 64;
/// Of these from one address, behind which there may be many.
const MAX_OF_HOST: usize = 8;
/// Callers that are let in before others have their turn.
const AT_ONCE: usize = 16;
const BACKLOG: i32 = 32;

impl Service {
    /// Let strangers connect to a circuit at this address, if its client takes calls.
    pub fn open_door(&mut self, core: &mut Core, watch: &impl Watch, circuit_id: u32, at: SocketAddr) {
        if self.doors.contains_key(&circuit_id) || core.may_be_called(circuit_id).is_err() {
            return;
        }
        let outcome = self.listen(at).and_then(|listener| {
            watch.watch_door(&listener, circuit_id)?;
            Ok(listener)
        });
        let Ok(listener) = outcome else {
            core.counters.count(DropReason::ExitNoListener);
            return;
        };
        if let Some(spare) = core.quic.open(LinkId::exit(circuit_id)) {
            self.doors.insert(circuit_id, Door { listener, spare: Some(spare) });
            core.set_door(circuit_id, true);
        }
    }

    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        if let Some(device) = &self.from.device {
            socket.bind_device(Some(device.to_bytes()))?;
        }
        socket.set_reuse_address(true)?; // connections of an earlier listener hold the port for a minute
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    }

    /// Let nobody connect to a circuit any more.
    pub fn close_door(&mut self, core: &mut Core, circuit_id: u32) {
        if let Some(door) = self.doors.remove(&circuit_id) {
            core.set_door(circuit_id, false);
            if let Some(spare) = door.spare {
                core.quic.reset(spare);
            }
        }
    }

    /// Close the doors of circuits that may not be called by the rules of now.
    pub fn close_forbidden_doors(&mut self, core: &mut Core) {
        for circuit_id in self.doors.keys().copied().collect::<Vec<_>>() {
            if core.may_be_called(circuit_id).is_err() {
                self.close_door(core, circuit_id);
            }
        }
    }

    /// Somebody connects to a circuit.
    pub fn called(&mut self, core: &mut Core, watch: &impl Watch, circuit_id: u32) {
        for _ in 0..AT_ONCE {
            let Some(door) = self.doors.get(&circuit_id) else { return };
            let (socket, from) = match door.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(_) => {
                    // There are no descriptors left: the kernel would report this door again and again.
                    core.counters.count(DropReason::ExitNoListener);
                    self.close_door(core, circuit_id);
                    return;
                }
            };
            if let Err(reason) = self.may_call(core, circuit_id, from.ip()) {
                core.counters.count(reason);
                continue;
            }
            self.let_caller_in(core, watch, circuit_id, socket, from);
        }
    }

    fn may_call(&self, core: &mut Core, circuit_id: u32, from: IpAddr) -> Result<(), DropReason> {
        core.take_call(circuit_id, from)?;
        let of_host = self.callers(circuit_id).filter(|ip| *ip == from).count();
        if of_host >= MAX_OF_HOST || !self.has_room_for_a_caller(circuit_id) {
            return Err(DropReason::StreamTooMany);
        }
        Ok(())
    }

    /// Where a circuit's callers are.
    fn callers(&self, circuit_id: u32) -> impl Iterator<Item = IpAddr> + '_ {
        let link = LinkId::exit(circuit_id);
        self.entries.values().filter_map(move |entry| match entry {
            Entry::Caller(caller) => (caller.link == link).then_some(caller.from.ip()),
            Entry::Joined(bridge) => bridge.caller().filter(|_| bridge.key.link == link),
            _ => None,
        })
    }

    fn has_room_for_a_caller(&self, circuit_id: u32) -> bool {
        self.entries.len() < MAX_CONNECTIONS / 2 && self.callers(circuit_id).count() < MAX_CALLERS
    }

    /// Have nobody sent to a door that has no room.
    pub(super) fn look_at_doors(&self, core: &mut Core) {
        for circuit_id in self.doors.keys() {
            core.set_door(*circuit_id, self.has_room_for_a_caller(*circuit_id));
        }
    }

    fn let_caller_in(
        &mut self,
        core: &mut Core,
        watch: &impl Watch,
        circuit_id: u32,
        socket: TcpStream,
        from: SocketAddr,
    ) {
        let link = LinkId::exit(circuit_id);
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let _ = socket.set_nodelay(true);
        let inspection = Inspection::new(TCP, 0);
        let number = self.next_number();
        if watch.watch(&socket, number).is_err() {
            return;
        }
        let caller = Caller { link, since: core.now, socket, from, bytes: Vec::new(), inspection };
        self.entries.insert(number, Entry::Caller(Box::new(caller)));
        self.hear(core, number);
    }

    /// Read what a caller says first, and open a stream to the client once it may pass.
    pub(super) fn hear(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Caller(caller)) = self.entries.get_mut(&number) else { return };
        let verdict = match caller.read() {
            Ok(()) => caller.inspection.of_client(&caller.bytes),
            Err(_) => {
                self.entries.remove(&number);
                return;
            }
        };
        match verdict {
            Verdict::Undecided => {}
            Verdict::Passes if caller.inspection.lacks(&caller.bytes) > 0 => {}
            Verdict::Refused => {
                core.counters.count(DropReason::StreamContentRefused);
                self.entries.remove(&number);
            }
            Verdict::Passes => self.connect_caller(core, number),
        }
    }

    fn connect_caller(&mut self, core: &mut Core, number: u32) {
        let Some(Entry::Caller(caller)) = self.entries.remove(&number) else { return };
        let circuit_id = caller.link.circuit_id;
        let spare = self.doors.get_mut(&circuit_id).and_then(|door| door.spare.take());
        let Some(key) = spare.or_else(|| core.quic.open(caller.link)) else {
            core.counters.count(DropReason::StreamTooMany);
            return;
        };
        let mut address = [0; MAX_ADDRESS_BYTES];
        let written = address::write_socks5(Destination::Ip(caller.from), &mut address).unwrap_or(0);
        let request = opening::request(Wish::Call, address.get(..written).unwrap_or_default());
        core.caller_came(circuit_id, caller.bytes.len());
        let said = Bytes::from([request, caller.bytes].concat());
        let from = (caller.socket, caller.from.ip());
        let bridge = Bridge::of_caller(key, from, caller.inspection, said, core.now);
        core.stream_opened(key.link);
        self.by_key.insert(key, number);
        self.entries.insert(number, Entry::Joined(Box::new(bridge)));
        self.turn(core, number);
    }
}

impl Caller {
    /// Read what there is. An error says that nothing will come of it.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; MAX_EARLY_BYTES];
        while self.bytes.len() < MAX_EARLY_BYTES {
            let room = buffer.get_mut(self.bytes.len()..).unwrap_or_default();
            match self.socket.read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.bytes.extend_from_slice(room.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
