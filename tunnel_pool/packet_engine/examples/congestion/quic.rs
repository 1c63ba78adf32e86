//! Streams from an exit to a client over quinn-proto, as much as the path carries.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use packet_engine::streams::plaintext::{Greeting, Plaintext};
use quinn_proto::congestion::ControllerFactory;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    RandomConnectionIdGenerator, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};
use ring::{hkdf, hmac};

use crate::traffic::{End, Flow, Outcome, Outgoing};

/// A circuit's place among the addresses that an endpoint knows.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 1);
const GREETING: Greeting = Greeting { version: 1, largest_message: 1500 };
static CHUNK: [u8; 65536] = [7; 65536];
/// More than 1,024 gaps in a stream end its connection (quinn-proto's assembler): so many packets of 1,200 bytes can't
/// leave them.
const STREAM_WINDOW_BYTES: u32 = 2_400_000;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const TRAIN: usize = 10;

pub type Controller = Arc<dyn ControllerFactory + Send + Sync>;

fn transport(controller: Controller) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(controller)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(u64::from(CONNECTION_WINDOW_BYTES))
        .mtu_discovery_config(None);
    Arc::new(config)
}

struct Host {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    /// Each stream with the bytes that were read from it.
    streams: Vec<(StreamId, u64)>,
    /// How many the client opens as soon as it is connected.
    to_open: usize,
    may_write: bool,
}

impl Host {
    fn new(server: Option<ServerConfig>, to_open: usize) -> Self {
        let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 64])));
        config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        let endpoint = Endpoint::new(Arc::new(config), server.map(Arc::new), false, None);
        Self { endpoint, connection: None, streams: Vec::new(), to_open, may_write: false }
    }

    fn receive(&mut self, now: Instant, packet: &[u8], out: &mut Outgoing) -> Outcome<()> {
        let mut answer = Vec::new();
        match self.endpoint.handle(now, PEER, None, None, BytesMut::from(packet), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(accepted.map_err(|refused| refused.cause)?);
            }
            Some(DatagramEvent::Response(_)) => out.push(answer),
            None => {}
        }
        Ok(())
    }

    /// Handle what has happened, and append the packets that may be sent by now.
    fn work(&mut self, now: Instant, out: &mut Outgoing) -> Outcome<()> {
        let Some((handle, mut connection)) = self.connection.take() else { return Ok(()) };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::ConnectionLost { reason } => return Err(reason.into()),
                Event::Connected => self.open_streams(&mut connection)?,
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = connection.streams().accept(dir) {
                        self.streams.push((id, 0));
                        self.may_write = true;
                    }
                }
                Event::Stream(StreamEvent::Writable { .. }) => self.may_write = true,
                Event::Stream(StreamEvent::Readable { id }) => self.read(&mut connection, id)?,
                _ => {}
            }
        }
        if self.may_write && connection.side().is_server() {
            self.may_write = false;
            for (id, _) in &self.streams {
                while connection.send_stream(*id).write_chunks(&mut [Bytes::from_static(&CHUNK)]).is_ok() {}
            }
        }
        let mut buffer = Vec::new();
        while let Some(train) = connection.poll_transmit(now, TRAIN, &mut buffer) {
            let packet_bytes = train.segment_size.unwrap_or(train.size);
            out.extend(buffer.get(..train.size).unwrap_or_default().chunks(packet_bytes).map(<[u8]>::to_vec));
            buffer.clear();
        }
        self.connection = Some((handle, connection));
        Ok(())
    }

    fn open_streams(&mut self, connection: &mut Connection) -> Outcome<()> {
        for _ in 0..self.to_open {
            let id = connection.streams().open(Dir::Bi).ok_or("the exit allows too few streams")?;
            connection.send_stream(id).write(b"?")?;
            self.streams.push((id, 0));
        }
        Ok(())
    }

    fn read(&mut self, connection: &mut Connection, id: StreamId) -> Outcome<()> {
        let mut stream = connection.recv_stream(id);
        let mut chunks = stream.read(true)?;
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            if let Some((_, read)) = self.streams.iter_mut().find(|(other, _)| *other == id) {
                *read += chunk.bytes.len() as u64;
            }
        }
        let _must_transmit = chunks.finalize(); // `work` always looks
        Ok(())
    }
}

/// One circuit: so many streams, whose data goes from the exit to the client.
pub struct Circuit {
    exit: Host,
    client: Host,
}

impl Circuit {
    pub fn open(now: Instant, controller: &Controller, streams: usize) -> Outcome<Self> {
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&[2; 64]);
        let mut server = ServerConfig::new(Arc::new(Plaintext(GREETING)), Arc::new(token_key));
        server.transport_config(transport(controller.clone()));
        let mut client_config = ClientConfig::new(Arc::new(Plaintext(GREETING)));
        client_config.transport_config(transport(controller.clone()));
        let (exit, mut client) = (Host::new(Some(server), 0), Host::new(None, streams));
        client.connection = Some(client.endpoint.connect(now, client_config, PEER, "exit")?);
        Ok(Self { exit, client })
    }

    fn host(&mut self, end: End) -> &mut Host {
        match end {
            End::Exit => &mut self.exit,
            End::Client => &mut self.client,
        }
    }
}

impl Flow for Circuit {
    fn receive(&mut self, now: Instant, end: End, packet: &[u8], out: &mut Outgoing) -> Outcome<()> {
        let host = self.host(end);
        host.receive(now, packet, out)?;
        host.work(now, out)
    }

    fn timeout(&mut self, end: End) -> Option<Instant> {
        self.host(end).connection.as_mut().and_then(|(_, connection)| connection.poll_timeout())
    }

    fn work(&mut self, now: Instant, end: End, out: &mut Outgoing) -> Outcome<()> {
        let host = self.host(end);
        if let Some((_, connection)) = &mut host.connection {
            connection.handle_timeout(now);
        }
        host.work(now, out)
    }

    fn received(&self) -> Vec<u64> {
        self.client.streams.iter().map(|(_, read)| *read).collect()
    }
}
