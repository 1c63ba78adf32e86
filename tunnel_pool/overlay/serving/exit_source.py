"""The source of an exit's traffic: an address, ports and a device, for datagrams and connections alike."""

import asyncio
import errno
import ipaddress
import random
import socket
from contextlib import suppress
from typing import NamedTuple

from tunnel_pool.overlay.serving.resolver import Found
from tunnel_pool.overlay.wire.udp import CannotBindError, bind_to_device, bind_udp

PORT_TRIES = 64
UNSPECIFIED = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
_PORT_TAKEN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
IPV6_DESTINATION = "2001:db8::1"  # of documentation (RFC 3849): nobody has it, and a default route leads there


class ExitSource(NamedTuple):
    """Says which address, ports and device all traffic leaves from."""

    host: str = UNSPECIFIED[socket.AF_INET]  # unspecified: any address, of IPv6, too
    ports: tuple[int, int] = (0, 0)  # first and last; (0, 0): any
    device: str = ""  # "": any

    @property
    def families(self) -> list[socket.AddressFamily]:
        """Return the address families that can be reached."""
        is_any = ipaddress.ip_address(self.host).is_unspecified
        return [socket.AF_INET, socket.AF_INET6] if is_any else [socket.AF_INET]

    def reaches_ipv6(self) -> bool:
        """Return whether there is a way to IPv6 destinations; nothing is sent to find out."""
        if socket.AF_INET6 not in self.families:
            return False
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
                bind_to_device(sock, self.device)
                sock.connect((IPV6_DESTINATION, 9))
        except OSError:
            return False
        return True

    def udp_socket(self, family: socket.AddressFamily) -> socket.socket:
        """Return a socket bound to a free port. Raises CannotBindError."""
        for _ in range(PORT_TRIES if self.ports[1] else 0):
            with suppress(CannotBindError):
                return bind_udp(self._host(family), self._port(), family, self.device)
        return bind_udp(self._host(family), self._port(), family, self.device)

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an IP address over TCP, from a free port. Raises OSError."""
        for _ in range(PORT_TRIES if self.ports[1] else 0):
            try:
                return await self._connect_once(host, port)
            except OSError as error:
                if error.errno not in _PORT_TAKEN:
                    raise
        return await self._connect_once(host, port)

    async def _connect_once(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bind_to_device(sock, self.device)
            sock.bind((self._host(family), self._port()))
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise

    def reaches(self, host: str) -> bool:
        """Return whether an IP address is of a family that can be reached."""
        return (socket.AF_INET6 if ":" in host else socket.AF_INET) in self.families

    def reached(self, found: Found) -> list[str]:
        """Return the addresses of what a resolver found that can be reached from here, IPv4 first."""
        return [str(address[0]) for family in self.families for of, *_, address in found if of == family]

    def _host(self, family: socket.AddressFamily) -> str:
        return self.host if family == socket.AF_INET else UNSPECIFIED[family]

    def _port(self) -> int:
        return random.randint(*self.ports)
