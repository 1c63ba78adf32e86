//! The Python face: packet_engine/_native.pyi says what each call means.

use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::cell::{Prefix, PREFIX_BYTES};
use crate::clients::Association;
use crate::core::{Event, Settings};
use crate::counters::RouteStats;
use crate::ends::SECRET_BYTES;
use crate::exit_from::ExitFrom;
use crate::keys::{Direction, HalfParts, SessionKeys};
use crate::limits;
use crate::policy::ExitPolicy;
use crate::routes::{Circuit, Exit, Purpose, Relay};
use crate::rules::ExitRules;
use crate::shared::{Command, Notice, Shared};
use crate::sys::{duplicate, SharedWords};
use crate::worker::Worker;

type Address = (String, u16);
type HalfArguments = (Vec<u8>, Vec<u8>, u64);

fn address(from: &Address) -> PyResult<SocketAddr> {
    let ip: IpAddr = from.0.parse().map_err(|_| PyValueError::new_err(format!("{} is no IP address", from.0)))?;
    Ok(SocketAddr::new(ip, from.1))
}

fn pair(from: SocketAddr) -> Address {
    (from.ip().to_string(), from.port())
}

fn direction(number: u8) -> PyResult<Direction> {
    match number {
        0 => Ok(Direction::Forward),
        1 => Ok(Direction::Backward),
        _ => Err(PyValueError::new_err("a direction is 0, forward, or 1, backward")),
    }
}

fn prefix_of(bytes: &[u8]) -> PyResult<Prefix> {
    bytes.try_into().map_err(|_| PyValueError::new_err(format!("a prefix has {PREFIX_BYTES} bytes")))
}

#[pyclass(frozen)]
struct Keys(Arc<SessionKeys>);

#[pymethods]
impl Keys {
    #[new]
    fn new(forward: HalfArguments, backward: HalfArguments) -> PyResult<Self> {
        fn parts(half: &HalfArguments) -> HalfParts<'_> {
            HalfParts { key: &half.0, salt: &half.1, counter: half.2 }
        }
        SessionKeys::new(&parts(&forward), &parts(&backward))
            .map(|keys| Self(Arc::new(keys)))
            .ok_or_else(|| PyValueError::new_err("a key has 32 bytes, a salt 4"))
    }
}

#[pyclass(frozen)]
struct Stats(Arc<RouteStats>);

#[pymethods]
impl Stats {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    fn read_streams(&self) -> (bool, u64, u64, f64) {
        let (are_spoken, open, all, round_trip_us) = self.0.read_streams();
        (are_spoken, open, all, round_trip_us as f64 / 1e6)
    }

    fn read(&self) -> (u64, u64, f64) {
        let (up, down, active_ms) = self.0.read();
        (up, down, active_ms as f64 / 1000.0)
    }
}

#[pyclass(frozen, name = "Settings")]
struct EngineSettings(Settings);

#[pymethods]
impl EngineSettings {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        prefix: &[u8],
        other_prefixes: Option<Vec<Vec<u8>>>,
        max_relay_early: u32,
        no_crypto: Vec<u8>,
        peer_flags: u16,
        own_messages: bool,
        allow_private: bool,
        end_secret: [u8; SECRET_BYTES],
    ) -> PyResult<Self> {
        let others = other_prefixes.map(|prefixes| prefixes.iter().map(|prefix| prefix_of(prefix)).collect());
        Ok(Self(Settings {
            prefix: prefix_of(prefix)?,
            other_prefixes: others.transpose()?,
            max_relay_early,
            no_crypto,
            policy: ExitPolicy { peer_flags, own_messages, allow_private },
            end_secret,
        }))
    }
}

#[pyclass(frozen)]
struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    fn command(&self, command: Command) {
        self.shared.command(command);
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (socket, exit_ip, settings, trains=true, takes_trains=true, exit_ports=(0, 0), device=""))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        socket: RawFd,
        exit_ip: &str,
        settings: &EngineSettings,
        trains: bool,
        takes_trains: bool,
        exit_ports: (u16, u16),
        device: &str,
    ) -> PyResult<Self> {
        let exit_from = ExitFrom {
            ip: exit_ip.parse().map_err(|_| PyValueError::new_err("exit_ip is no IP address"))?,
            first_port: exit_ports.0,
            last_port: exit_ports.1,
            device: if device.is_empty() { None } else { Some(CString::new(device)?) },
        };
        let shared = Arc::new(Shared::new()?);
        let tunnel = duplicate(socket)?;
        let mut worker = Worker::new(tunnel, exit_from, settings.0.clone(), trains, takes_trains, shared.clone())?;
        let thread = std::thread::Builder::new().name("packet engine".to_owned()).spawn({
            let shared = shared.clone();
            move || {
                let failed = match catch_unwind(AssertUnwindSafe(|| worker.run())) {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some("it panicked".to_owned()),
                };
                shared.end();
                if let Some(why) = failed {
                    shared.notify(std::iter::once(Notice::Failed(why)));
                }
            }
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    fn fileno(&self) -> RawFd {
        self.shared.bell.as_fd().as_raw_fd()
    }

    fn configure(&self, settings: &EngineSettings) {
        self.command(Command::Configure(settings.0.clone()));
    }

    fn set_exit_rules(&self, packed: &[u8]) -> PyResult<()> {
        let rules = ExitRules::unpack(packed).ok_or_else(|| PyValueError::new_err("no exit rules"))?;
        self.command(Command::SetExitRules(rules));
        Ok(())
    }

    fn set_handshakes(&self, per_s: u32, per_source_per_s: u32) {
        self.command(Command::SetHandshakes { per_s, per_source_per_s });
    }

    fn set_limits(&self, memory: RawFd, slot: u8) -> PyResult<()> {
        let memory = SharedWords::map(memory, limits::WORDS)?;
        if limits::Limits::new(memory.clone(), slot).is_none() {
            return Err(PyValueError::new_err("limits of another version"));
        }
        self.command(Command::SetLimits { memory, slot });
        Ok(())
    }

    fn send(&self, to: Address, packet: &[u8]) -> PyResult<()> {
        self.command(Command::SendPacket { to: address(&to)?, packet: packet.to_vec() });
        Ok(())
    }

    fn send_cell(&self, to: Address, circuit_id: u32, plaintext: bool, message: &[u8]) -> PyResult<()> {
        self.command(Command::SendCell { to: address(&to)?, circuit_id, plaintext, message: message.to_vec() });
        Ok(())
    }

    fn exit_send(&self, circuit_id: u32, to: Address, payload: &[u8]) -> PyResult<()> {
        self.command(Command::ExitSend { circuit_id, to: address(&to)?, payload: payload.to_vec() });
        Ok(())
    }

    #[pyo3(signature = (circuit_id, first_hop, layers, end_to_end, lane, ctype, ready, stats, tries_streams=false, reaches_ipv6=false, known_as=0))]
    #[allow(clippy::too_many_arguments)]
    fn set_circuit(
        &self,
        circuit_id: u32,
        first_hop: Address,
        layers: Vec<Py<Keys>>,
        end_to_end: Option<(Py<Keys>, u8)>,
        lane: u32,
        ctype: &str,
        ready: bool,
        stats: &Stats,
        tries_streams: bool,
        reaches_ipv6: bool,
        known_as: u32,
    ) -> PyResult<()> {
        let purpose = match ctype {
            "DATA" => Purpose::Data,
            "RP_SEEDER" | "RP_DOWNLOADER" => Purpose::EndToEnd,
            _ => Purpose::Other,
        };
        let end_to_end = match end_to_end {
            Some((keys, outwards)) => Some((keys.get().0.clone(), direction(outwards)?)),
            None => None,
        };
        let layers = layers.iter().map(|keys| keys.get().0.clone()).collect();
        let circuit = Circuit {
            end_to_end,
            ready,
            tries_streams,
            reaches_ipv6,
            known_as,
            stats: stats.0.clone(),
            ..Circuit::new(address(&first_hop)?, layers, lane, purpose)
        };
        self.command(Command::SetCircuit(circuit_id, circuit));
        Ok(())
    }

    fn remove_circuit(&self, circuit_id: u32) {
        self.command(Command::RemoveCircuit(circuit_id));
    }

    #[allow(clippy::too_many_arguments)]
    fn set_relay(
        &self,
        circuit_id: u32,
        next_id: u32,
        to: Address,
        keys: &Keys,
        towards: u8,
        rendezvous: bool,
        relay_early_count: u32,
        stats: &Stats,
    ) -> PyResult<()> {
        let relay = Relay {
            next_id,
            to: address(&to)?,
            keys: keys.0.clone(),
            direction: direction(towards)?,
            rendezvous,
            relay_early_count: relay_early_count.into(),
            stats: stats.0.clone(),
        };
        self.command(Command::SetRelay(circuit_id, relay));
        Ok(())
    }

    fn remove_relay(&self, circuit_id: u32) {
        self.command(Command::RemoveRelay(circuit_id));
    }

    fn set_exit(&self, circuit_id: u32, previous_hop: Address, keys: &Keys, stats: &Stats) -> PyResult<()> {
        let exit = Exit::new(address(&previous_hop)?, keys.0.clone(), stats.0.clone());
        self.command(Command::SetExit(circuit_id, Box::new(exit)));
        Ok(())
    }

    fn remove_exit(&self, circuit_id: u32) {
        self.command(Command::RemoveExit(circuit_id));
    }

    fn attach_stream(&self, incoming: RawFd, outgoing: RawFd) -> PyResult<()> {
        let (input, output) = (duplicate(incoming)?, duplicate(outgoing)?);
        self.command(Command::AttachStream { input, output });
        Ok(())
    }

    fn add_association(&self, association_id: u32, socket: RawFd, lane: u32, client: Address) -> PyResult<()> {
        let client = address(&client)?;
        let socket = duplicate(socket)?;
        self.command(Command::AddAssociation { id: association_id, socket, association: Association { lane, client } });
        Ok(())
    }

    fn remove_association(&self, association_id: u32) {
        self.command(Command::RemoveAssociation(association_id));
    }

    fn open_stream(&self, socket: RawFd, lane: u32, destination: &[u8], early: &[u8]) -> PyResult<()> {
        let socket = duplicate(socket)?;
        let (destination, early) = (destination.to_vec(), early.to_vec());
        self.command(Command::OpenStream { socket, lane, destination, early });
        Ok(())
    }

    #[pyo3(signature = (number, host))]
    fn resolved(&self, number: u32, host: Option<&str>) -> PyResult<()> {
        let ip = host.map(|host| address(&(host.to_owned(), 0)).map(|address| address.ip())).transpose()?;
        self.command(Command::Resolved { number, ip });
        Ok(())
    }

    fn refuse_guest(&self, known_as: u32) {
        self.command(Command::RefuseGuest(known_as));
    }

    fn set_usual(&self, association_id: u32) {
        self.command(Command::SetUsual(association_id));
    }

    fn exit_announced(&self, circuit_id: u32) {
        self.command(Command::ExitAnnounced(circuit_id));
    }

    fn tell_exit_port(&self, circuit_id: u32) {
        self.command(Command::TellExitPort(circuit_id));
    }

    fn announce(&self, circuit_id: u32) {
        self.command(Command::Announce(circuit_id));
    }

    fn pin(&self, association_id: u32, destination: &[u8], circuit_id: u32) {
        let destination = destination.to_vec();
        self.command(Command::Pin { association: association_id, destination, circuit_id });
    }

    fn client_datagram(&self, association_id: u32, datagram: &[u8]) {
        self.command(Command::ClientDatagram { association: association_id, datagram: datagram.to_vec() });
    }

    fn take_events<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        let events = PyList::empty(py);
        for notice in self.shared.take_notices(limit) {
            match notice {
                Notice::Event(Event::Packet { from, bytes }) => {
                    events.append(("packet", pair(from), PyBytes::new(py, &bytes)))?;
                }
                Notice::Event(Event::Orphans { lane, destinations }) => {
                    let list = PyList::new(py, destinations.iter().map(|address| PyBytes::new(py, address)))?;
                    events.append(("orphans", lane, list))?;
                }
                Notice::Event(Event::Resolve { number, name, circuit_id }) => {
                    events.append(("resolve", number, name, circuit_id))?;
                }
                Notice::Event(Event::Guest { circuit_id, known_as, infohash }) => {
                    let infohash = infohash.map(|infohash| PyBytes::new(py, &infohash));
                    events.append(("guest", circuit_id, known_as, infohash))?;
                }
                Notice::Event(Event::Streams { circuit_id }) => events.append(("streams", circuit_id))?,
                Notice::Event(Event::ExitPort { circuit_id, port }) => {
                    events.append(("exit_port", circuit_id, port))?;
                }
                Notice::StreamLost(why) => events.append(("stream_lost", why))?,
                Notice::Failed(why) => events.append(("failed", why))?,
            }
        }
        Ok(events)
    }

    fn wire_bytes(&self) -> (u64, u64) {
        let (sent, received, _) = self.shared.wire.read();
        (sent, received)
    }

    fn strangers(&self) -> (u64, u64) {
        self.shared.counters.strangers()
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        for (name, value) in self.shared.counters.all() {
            counters.set_item(name, value)?;
        }
        Ok(counters)
    }

    fn close(&self, py: Python<'_>) {
        self.command(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic was told as an event already.
            let _ = py.detach(|| thread.join());
        }
    }
}

impl std::ops::Drop for Engine {
    fn drop(&mut self) {
        self.command(Command::Stop);
    }
}

/// Whether an exit with this policy lets a datagram go to an address; the counter's name when not.
#[pyfunction]
#[pyo3(signature = (payload, to, prefix, peer_flags, own_messages, allow_private))]
fn exit_refusal(
    payload: &[u8],
    to: Address,
    prefix: &[u8],
    peer_flags: u16,
    own_messages: bool,
    allow_private: bool,
) -> PyResult<Option<&'static str>> {
    let prefix = prefix_of(prefix)?;
    let policy = ExitPolicy { peer_flags, own_messages, allow_private };
    let rules = ExitRules::default();
    let to = address(&to)?;
    let outcome = policy
        .destination(to)
        .and_then(|()| rules.destination(to))
        .and_then(|()| policy.content(payload, &prefix, rules.protocols_or(peer_flags)));
    Ok(outcome.err().map(|reason| reason.name()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Engine>()?;
    module.add_class::<EngineSettings>()?;
    module.add_class::<Keys>()?;
    module.add_class::<Stats>()?;
    module.add_function(wrap_pyfunction!(exit_refusal, module)?)?;
    Ok(())
}
