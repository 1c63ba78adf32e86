"""The Rust engine. Commands return at once and are carried out in order by the engine's thread."""

from typing import Literal

_Address = tuple[str, int]
_Half = tuple[bytes, bytes, int]
_Event = (
    tuple[Literal["packet"], _Address, bytes]
    | tuple[Literal["orphans"], int, list[bytes]]
    | tuple[Literal["resolve"], int, str]
    | tuple[Literal["guest"], int, int, bytes | None]
    | tuple[Literal["streams"], int]
    | tuple[Literal["stream_lost"], str]
    | tuple[Literal["failed"], str]
)

class Keys:
    """One hop's session keys; each half is key (32 bytes), salt (4 bytes) and the last counter sent."""

    def __init__(self, forward: _Half, backward: _Half) -> None: ...

class Stats:
    """What a route carried."""

    def read(self) -> tuple[int, int, float]:
        """Bytes up, bytes down, seconds since the epoch of the last activity (0: none yet)."""

    def read_streams(self) -> tuple[bool, int, int, float]:
        """Whether the other end speaks streams, how many are open, how many there were, and a round trip in seconds."""

class Settings:
    """What may change while the engine runs. Raises ValueError for a prefix that has not 22 bytes.

    `other_prefixes`: overlays beside the tunnels that listen on the socket, None for all.
    `own_messages`: the exit lets the overlay's own messages out whatever `peer_flags` say.
    """

    def __init__(
        self,
        prefix: bytes,
        other_prefixes: list[bytes] | None,
        max_relay_early: int,
        no_crypto: list[int],
        peer_flags: int,
        own_messages: bool,
        allow_private: bool,
        end_secret: bytes,
    ) -> None: ...

class Engine:
    """A thread that owns a duplicate of the bound UDP `socket`. Raises OSError, ValueError.

    `trains`: send several datagrams of one size as one (UDP_SEGMENT) where the kernel can;
    `takes_trains`: have it hand them over so (UDP_GRO). Exits have a port of `exit_ports`, first and
    last, or any, and the device, or any.
    """

    def __init__(
        self,
        socket: int,
        exit_ip: str,
        settings: Settings,
        trains: bool = True,
        takes_trains: bool = True,
        exit_ports: tuple[int, int] = (0, 0),
        device: str = "",
    ) -> None: ...
    def fileno(self) -> int:
        """Readable when `take_events` has something."""

    def configure(self, settings: Settings) -> None: ...
    def set_exit_rules(self, packed: bytes) -> None:
        """Apply what ExitRules.pack makes (overlay/ground/exit_rules.py). Raises ValueError."""

    def set_handshakes(self, per_s: int, per_source_per_s: int) -> None:
        """So many CREATE and EXTEND are handed on at most, in all and of an IP address; 0: any number."""

    def set_limits(self, memory: int, slot: int) -> None:
        """Keep the limits in this file in memory (overlay/serving/limits.py), as this slot's child. Raises OSError."""

    def send(self, to: _Address, packet: bytes) -> None: ...
    def send_cell(self, to: _Address, circuit_id: int, plaintext: bool, message: bytes) -> None: ...
    def exit_send(self, circuit_id: int, to: _Address, payload: bytes) -> None: ...
    def set_circuit(
        self,
        circuit_id: int,
        first_hop: _Address,
        layers: list[Keys],
        end_to_end: tuple[Keys, int] | None,
        lane: int,
        ctype: str,
        ready: bool,
        stats: Stats,
        tries_streams: bool = False,
        reaches_ipv6: bool = False,
        known_as: int = 0,
    ) -> None:
        """`layers` from the first hop on; `end_to_end` with the direction that we send in.

        `lane` is a number below 2**32: the circuit serves the associations that have the same. With `tries_streams`, a
        connection for streams is begun once it is ready. IPv6 destinations are met over circuits that `reaches_ipv6`,
        where there are any.
        """

    def remove_circuit(self, circuit_id: int) -> None: ...
    def set_relay(
        self,
        circuit_id: int,
        next_id: int,
        to: _Address,
        keys: Keys,
        towards: int,
        rendezvous: bool,
        relay_early_count: int,
        stats: Stats,
    ) -> None: ...
    def remove_relay(self, circuit_id: int) -> None: ...
    def set_exit(self, circuit_id: int, previous_hop: _Address, keys: Keys, stats: Stats) -> None: ...
    def remove_exit(self, circuit_id: int) -> None: ...
    def attach_stream(self, incoming: int, outgoing: int) -> None:
        """Carry the data stream (rpc/data.py) over duplicates of these descriptors."""

    def add_association(self, association_id: int, socket: int, lane: int, client: _Address) -> None:
        """Serve a client of the SOCKS5 server over a duplicate of this bound UDP socket."""

    def remove_association(self, association_id: int) -> None: ...
    def open_stream(self, socket: int, lane: int, destination: bytes, early: bytes) -> None:
        """Lead a SOCKS5 client's connection, by a duplicate, through a circuit of the lane to a destination (RFC 1928,
        5), and reply to the client. `early` is what it has sent already. Raises OSError.
        """

    def resolved(self, number: int, host: str | None) -> None:
        """Answer the event `resolve` with an IP address, or None where there is none."""

    def refuse_guest(self, known_as: int) -> None: ...
    def set_usual(self, association_id: int) -> None:
        """Give this association what nobody of its lane asked for."""

    def exit_announced(self, circuit_id: int) -> None:
        """Let strangers reach this exit's circuit: it has told a tracker where it is found, past the engine."""

    def tell_exit_port(self, circuit_id: int) -> None:
        """Open this exit's sockets, and tell the port of the IPv4 one by an event `exit_port`; 0 if there is none."""

    def strangers(self) -> tuple[int, int]:
        """Return the datagrams of strangers that came in at exits, and their bytes."""

    def announce(self, circuit_id: int) -> None:
        """Hand what comes over this circuit from where no client sends to over it to the main process."""

    def pin(self, association_id: int, destination: bytes, circuit_id: int) -> None:
        """Have what the association's client sends to a destination (RFC 1928, 5) go over this circuit."""

    def client_datagram(self, association_id: int, datagram: bytes) -> None:
        """A datagram of the association's client (RFC 1928 section 7) that came another way."""

    def take_events(self, limit: int) -> list[_Event]:
        """The oldest; `fileno` stays readable while there are more."""

    def wire_bytes(self) -> tuple[int, int]:
        """Return the payload bytes of all datagrams sent and received by the tunnels' socket."""

    def counters(self) -> dict[str, int]: ...
    def close(self) -> None:
        """Carry out what was asked before, then end the thread."""

def exit_refusal(
    payload: bytes,
    to: _Address,
    prefix: bytes,
    peer_flags: int,
    own_messages: bool,
    allow_private: bool,
) -> str | None:
    """Why an exit with this policy would not let the datagram out: the counter's name, None when it would."""
