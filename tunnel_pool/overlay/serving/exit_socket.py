"""py-ipv8's exit socket with a policy on destinations and an address to leave from."""

import socket
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_RELAY, Hop
from ipv8.messaging.interfaces.udp.endpoint import DomainAddress, UDPv4Address, UDPv6Address

from tunnel_pool.overlay.ground.destinations import is_allowed_destination, unmapped
from tunnel_pool.overlay.ground.exit_rules import Contacts, ExitRules, could_be_any_of
from tunnel_pool.overlay.ground.exit_rules import Protocol as ExitProtocol
from tunnel_pool.overlay.hidden_swarms.services import (
    HIDDEN_SERVICE_ANSWERS,
    HIDDEN_SERVICE_MESSAGES,
    HIDDEN_SERVICE_QUESTIONS,
)
from tunnel_pool.overlay.serving.circuit_names import CircuitNames, TooManyNamesError, is_refused_name
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.serving.resolver import Names
from tunnel_pool.overlay.serving.shares import Asker
from tunnel_pool.overlay.serving.strangers import Strangers, StrangersLetIn
from tunnel_pool.overlay.wire.udp import CannotBindError, UdpSocket
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import MESSAGE_ID_AT

SERVING_FLAGS = {PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8}


class ExitPolicy(Protocol):
    """Names what exit sockets ask of the tunnel community that they belong to."""

    counters: Counter[str]
    settings: Any
    allow_private: bool
    exit_source: ExitSource
    exit_rules: ExitRules
    exit_sockets: Mapping[int, Any]
    names: Names
    strangers: StrangersLetIn

    def exit_protocols(self) -> ExitProtocol: ...

    def get_prefix(self) -> bytes: ...


class PolicedExitSocket(TunnelExitSocket):
    """Sends for a circuit, from the node's listening address where that is set, so that an exit is one address."""

    def __init__(self, circuit_id: int, hop: Hop, overlay: ExitPolicy) -> None:
        super().__init__(circuit_id, hop, overlay)
        self._policy = overlay
        self._contacts = Contacts()
        self._strangers = Strangers()
        self.asked = Contacts()  # over HTTP
        ignore = (OSError, ValueError, TooManyNamesError)  # who waits for the name hears of them
        keep = partial(self.register_anonymous_task, "a name", ignore=ignore)
        self.names = CircuitNames(overlay.names, self.asker, keep)

    def enable(self) -> None:
        if self.enabled:  # type: ignore[has-type]
            return
        counters, source = self._policy.counters, self._policy.exit_source
        try:
            sock = source.udp_socket(socket.AF_INET)
            self.transport_ipv4 = UdpSocket(sock, self.datagram_received_ipv4, counters)
        except CannotBindError:
            counters[DropReason.EXIT_NO_IPV4_SOCKET] += 1
        self.enabled = self.transport_ipv4 is not None  # otherwise the next datagram tries again
        if self.enabled and socket.AF_INET6 in source.families:
            try:
                sock = source.udp_socket(socket.AF_INET6)
                self.transport_ipv6 = UdpSocket(sock, self.datagram_received_ipv6, counters)
            except CannotBindError:
                counters[DropReason.EXIT_NO_IPV6_SOCKET] += 1

    def sendto(self, data: bytes, destination: tuple[str, int]) -> None:
        """Send, unless the policy says no; a domain name is judged once it is resolved."""
        if not self._policy.settings.peer_flags & SERVING_FLAGS:
            self._policy.counters[DropReason.EXIT_NOT_OFFERED] += 1
            return
        if isinstance(destination, DomainAddress):
            self._send_to_name(data, destination)
            return
        destination = unmapped(destination)
        if self._may_send(data, destination):
            super().sendto(data, destination)

    @property
    def asker(self) -> Asker:
        return Asker(self.circuit_id, self.hop.address[0])

    def _send_to_name(self, data: bytes, destination: DomainAddress) -> None:
        """Look the name up and send; py-ipv8 would write the names of others to the log."""
        refusal = self._name_refusal(destination[0])
        if refusal is None and not self.is_allowed(data):
            return
        if (refusal := refusal or self._pace_refusal(destination[0])) is not None:
            self._policy.counters[refusal] += 1
        else:
            self.register_anonymous_task("send to a name", self._send_once_found, data, destination)

    async def _send_once_found(self, data: bytes, destination: DomainAddress) -> None:
        name, port = destination
        try:
            ip = min(await self.names.look_up(name), key=lambda each: int(each[0]))[4][0]  # IPv4 first, as py-ipv8 does
        except (OSError, ValueError):
            self._policy.counters[DropReason.EXIT_NAME_UNKNOWN] += 1
        except TooManyNamesError:
            self._policy.counters[DropReason.EXIT_TOO_MANY_NAMES] += 1
        else:
            self.sendto(data, (UDPv6Address if ":" in ip else UDPv4Address)(ip, port))

    def _name_refusal(self, name: str) -> str | None:
        policy = self._policy
        if is_refused_name(name, policy.allow_private, policy.exit_source.device) or not policy.exit_protocols():
            return DropReason.EXIT_NAME_REFUSED
        return None

    def _pace_refusal(self, name: str) -> str | None:
        """Return why a name may not be looked up just now; it is counted as a new destination if it is one."""
        is_new = not self.names.is_known(name)
        if is_new and not self._contacts.may_look_up(self._policy.exit_rules, time.monotonic()):
            return DropReason.EXIT_NEW_DESTINATIONS_TOO_FAST
        return None

    def _may_send(self, data: bytes, destination: tuple[str, int]) -> bool:
        policy, rules = self._policy, self._policy.exit_rules
        if not is_allowed_destination(*destination[:2], policy.allow_private):
            refusal: str | None = DropReason.EXIT_DESTINATION_REFUSED
        elif (refusal := rules.destination_refusal(*destination[:2])) is None:
            if not self.is_allowed(data):
                return False
            if self._reaches(destination[0]):
                refusal = self._contacts.refusal(rules, (destination[0], destination[1]), time.monotonic())
            else:
                refusal = DropReason.EXIT_NO_IPV6_SOCKET
        if refusal is not None:
            policy.counters[refusal] += 1
        else:
            self._strangers.sent(destination[0], data, time.monotonic())
            if self._hidden_service_message(data) in HIDDEN_SERVICE_QUESTIONS:
                self._strangers.asks_introduction_points()
        return refusal is None

    async def port(self) -> int | None:
        """Return the port of the IPv4 socket, which is opened for it; None if none can be."""
        self.enable()
        if self.transport_ipv4 is None:
            return None
        port: int = self.transport_ipv4.sock.getsockname()[1]
        return port

    def announced(self) -> None:
        """Let strangers in: the circuit has told a tracker where it is found, by a request over HTTP."""
        self._strangers.announced()

    def _reaches(self, host: str) -> bool:
        return not self.enabled or ":" not in host or self.transport_ipv6 is not None  # type: ignore[has-type]

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        if self.is_allowed(data) and self._may_come_in(data, source[0]):
            self._contacts.answered((source[0], source[1]), time.monotonic())
            super().datagram_received(data, source)
        else:
            self.bytes_down += len(data)

    def _may_come_in(self, data: bytes, host: str) -> bool:
        now_s = time.monotonic()
        if not self._strangers.is_stranger(unmapped((host, 0))[0]):
            return True
        if self._hidden_service_message(data) in HIDDEN_SERVICE_ANSWERS and self._strangers.lets_answer_in(now_s):
            return True
        refusal = self._strangers.refusal(self._policy.exit_rules, now_s)
        if refusal is not None:
            self._policy.counters[refusal] += 1
            return False
        self._policy.strangers.let_in(len(data))
        return True

    def is_allowed(self, data: bytes) -> bool:
        """Return whether the rules or the peer flags let such content out (py-ipv8 exit_socket.py).

        py-ipv8 lets all messages of its own overlay out of every node; we those of hidden services.
        """
        allowed = could_be_any_of(self._policy.exit_protocols(), data) or self._hidden_service_message(data) is not None
        if not allowed:
            self._policy.counters[DropReason.EXIT_CONTENT_REFUSED] += 1
        return allowed

    def _hidden_service_message(self, data: bytes) -> int | None:
        """Return the message id of a hidden service's message, None for all else."""
        if not data.startswith(self._policy.get_prefix()) or len(data) <= MESSAGE_ID_AT:
            return None
        return data[MESSAGE_ID_AT] if data[MESSAGE_ID_AT] in HIDDEN_SERVICE_MESSAGES else None


class NativeExitSocket(PolicedExitSocket):
    """Stands for an exit whose sockets are the native engine's (packet_engine/endpoint.py's NativeEndpoint).

    Python sees only names to resolve.
    """

    def __init__(self, circuit_id: int, hop: Hop, overlay: ExitPolicy, native: Any) -> None:
        super().__init__(circuit_id, hop, overlay)
        self._engine, self._ask_port = native.engine, native.exit_port
        self._stats = native.exit_sockets.stats

    @property
    def enabled(self) -> bool:
        """Return whether something has left, be it past Python."""
        stats = self._stats.get(self.circuit_id)
        return self._enabled or (stats is not None and stats.read()[0] > 0)

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value

    def enable(self) -> None:
        self.enabled = True

    async def port(self) -> int | None:
        port: int | None = await self._ask_port(self.circuit_id)
        return port

    def announced(self) -> None:
        self._engine.exit_announced(self.circuit_id)

    def sendto(self, data: bytes, destination: tuple[str, int]) -> None:
        if isinstance(destination, DomainAddress):
            super().sendto(data, destination)
        else:
            self._engine.exit_send(self.circuit_id, (destination[0], destination[1]), data)
