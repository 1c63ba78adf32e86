"""Network namespaces, one for each node, and the links between them. Run by links.py, as root.

python -m tunnel_pool.gumby_experiments.nodes.router NODES [--kind netem|tun]

Every node has a link to a place in the middle, with a delay, jitter, loss and rate in
either direction. Where the kernel has netem the links are veth pairs and the middle is a
namespace that forwards. Where it has not, they are TUN devices and this process is the
middle: it holds back, drops and spaces packets much as netem does, but keeps their order, which
netem does not when there is jitter, and draws by the seed.

Prints {"pid", "kind", "namespaces": {node: descriptor}}; then each line of stdin is a JSON object of a
Link's fields and "node", answered by a line when it holds. All of it is gone when stdin, and with it this
process, ends.
"""

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tunnel_pool.rpc.lifeline import die_with_parent

CLONE_NEWNET = 0x40000000  # linux/sched.h
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000  # linux/if_tun.h
NET = "10.99"
MTU_BYTES = 1500
QUEUE_PACKETS = 10_000
DEVICE = "wire"
PACKETS_AT_ONCE = 64


def address(node: int) -> str:
    """Return the address of a node, whose number is 1 or above."""
    return f"{NET}.{node // 250}.{node % 250 + 1}"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes a node's link to the middle, which is the same each way."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    rate_mbit: float = 0.0  # 0: unlimited
    queue_ms: float = 200.0  # a narrow link queues what it carries in this time, and drops the rest


def netem(link: Link) -> list[str]:
    """Return the arguments that `tc qdisc replace dev DEVICE root` gets."""
    carried_ms = link.delay_ms + link.jitter_ms + link.queue_ms  # what is on its way counts, too
    packets = link.rate_mbit * 1000 * carried_ms / 8 / MTU_BYTES if link.rate_mbit else QUEUE_PACKETS
    words = ["netem", "limit", str(max(1, round(packets))), "delay", f"{link.delay_ms}ms"]
    words += [f"{link.jitter_ms}ms"] if link.jitter_ms else []
    words += ["loss", f"{link.loss_percent}%"] if link.loss_percent else []
    return words + (["rate", f"{link.rate_mbit}mbit"] if link.rate_mbit else [])


class Direction:
    """Decides for one way of a link when a packet arrives, or that it does not. Pure: the time is an argument."""

    def __init__(self, chance: random.Random) -> None:
        self.link = Link()
        self._chance = chance
        self._free_s = 0.0  # when the link has sent all that it was given
        self._last_s = 0.0

    def arrival(self, size_bytes: int, now_s: float) -> float | None:
        link = self.link
        if link.loss_percent and self._chance.random() * 100 < link.loss_percent:
            return None
        sent_s = now_s
        if link.rate_mbit:
            self._free_s = max(self._free_s, now_s) + size_bytes * 8 / (link.rate_mbit * 1e6)
            if self._free_s - now_s > link.queue_ms / 1000:
                self._free_s -= size_bytes * 8 / (link.rate_mbit * 1e6)
                return None
            sent_s = self._free_s
        jitter_s = self._chance.uniform(-link.jitter_ms, link.jitter_ms) / 1000 if link.jitter_ms else 0.0
        self._last_s = max(self._last_s, sent_s + max(0.0, link.delay_ms / 1000 + jitter_s))
        return self._last_s


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _unshare() -> int:
    """Go into a new network namespace; returns a descriptor of it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    _run("ip", "link", "set", "lo", "up")
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def has_netem() -> bool:
    """Return whether this kernel has it: tried in the namespace that we are in."""
    tried = subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "netem"], capture_output=True)  # noqa: S607, PLW1510
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True)  # noqa: S607, PLW1510
    return tried.returncode == 0


class KernelLinks:
    """Makes links of veth pairs with netem at both ends."""

    def __init__(self, nodes: int, middle: int) -> None:
        self._middle = middle
        self.namespaces = {node: _unshare() for node in range(1, nodes + 1)}
        _enter(middle)
        for node, namespace in self.namespaces.items():
            ours = f"to{node}"
            target = f"/proc/{os.getpid()}/fd/{namespace}"
            _run("ip", "link", "add", ours, "type", "veth", "peer", "name", DEVICE, "netns", target)
            _run("ip", "link", "set", ours, "up")
            _write(f"/proc/sys/net/ipv4/conf/{ours}/proxy_arp", "1")
            _write(f"/proc/sys/net/ipv4/neigh/{ours}/proxy_delay", "0")
            self._in(node, "ip", "addr", "add", f"{address(node)}/32", "dev", DEVICE)
            self._in(node, "ip", "link", "set", DEVICE, "up")
            self._in(node, "ip", "route", "add", "default", "dev", DEVICE)
            _run("ip", "route", "add", address(node), "dev", ours)
        _write("/proc/sys/net/ipv4/ip_forward", "1")

    def _in(self, node: int, *command: str) -> None:
        _enter(self.namespaces[node])
        try:
            _run(*command)
        finally:
            _enter(self._middle)

    def set(self, node: int, link: Link) -> None:
        _run("tc", "qdisc", "replace", "dev", f"to{node}", "root", *netem(link))
        self._in(node, "tc", "qdisc", "replace", "dev", DEVICE, "root", *netem(link))

    def serve(self) -> None:
        for node, link in _asked(sys.stdin):
            self.set(node, link)
            _answer(node)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _answer(node: int) -> None:
    print(json.dumps({"set": node}), flush=True)


def _asked(lines: Iterator[str]) -> Iterator[tuple[int, Link]]:
    for line in lines:
        fields = json.loads(line)
        yield fields.pop("node"), msgspec.convert(fields, Link)


class _Attachment(NamedTuple):
    """Holds a node's TUN device, and both directions of its link."""

    device: int
    up: Direction
    down: Direction


class _OnTheWay(NamedTuple):
    """Holds a packet that is in the middle, or at its node, when it is `due_s`; in the order of these times."""

    due_s: float
    number: int  # keeps the order of packets with the same time
    to: _Attachment
    packet: bytes
    is_in_the_middle: bool


class TunLinks:
    """Makes links of TUN devices, and carries their packets in this process."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self.namespaces: dict[int, int] = {}
        self._attachments: dict[int, _Attachment] = {}
        self._by_address: dict[bytes, _Attachment] = {}
        self._waiting: list[_OnTheWay] = []
        self._number = 0
        for node in range(1, nodes + 1):
            self.namespaces[node] = _unshare()
            attachment = _Attachment(_open_tun(address(node)), Direction(chance), Direction(chance))
            self._attachments[node] = attachment
            self._by_address[bytes(map(int, address(node).split(".")))] = attachment

    def set(self, node: int, link: Link) -> None:
        self._attachments[node].up.link = self._attachments[node].down.link = link

    def serve(self) -> None:
        devices = {attachment.device: attachment for attachment in self._attachments.values()}
        unread = b""
        while True:
            pause_s = max(0.0, self._waiting[0].due_s - time.monotonic()) if self._waiting else None
            ready, _, _ = select.select([*devices, 0], [], [], pause_s)
            for device in ready:
                if device in devices:
                    self._take(devices[device])
                    continue
                read = os.read(0, 1 << 16)
                if not read:
                    return
                *lines, unread = (unread + read).split(b"\n")
                for node, link in _asked(line.decode() for line in lines):
                    self.set(node, link)
                    _answer(node)
            self._deliver(time.monotonic())

    def _take(self, attachment: _Attachment) -> None:
        """Carry the packets that a node sends through its link."""
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(attachment.device, MTU_BYTES + 100)
            except BlockingIOError:
                return
            to = self._by_address.get(packet[16:20])  # RFC 791: destination
            if to is None or packet[0] >> 4 != 4:
                continue
            self._send_on(attachment.up.arrival(len(packet), time.monotonic()), to, packet, is_in_the_middle=True)

    def _send_on(self, due_s: float | None, to: _Attachment, packet: bytes, *, is_in_the_middle: bool) -> None:
        if due_s is not None:
            self._number += 1
            heapq.heappush(self._waiting, _OnTheWay(due_s, self._number, to, packet, is_in_the_middle))

    def _deliver(self, now_s: float) -> None:
        """Carry on what is in the middle by now, and give the nodes what has reached them."""
        while self._waiting and self._waiting[0].due_s <= now_s:
            due_s, _, to, packet, is_in_the_middle = heapq.heappop(self._waiting)
            if is_in_the_middle:
                # Its link keeps the order in which packets come to the middle, from whatever node.
                self._send_on(to.down.arrival(len(packet), due_s), to, packet, is_in_the_middle=False)
                continue
            with contextlib.suppress(BlockingIOError):  # the node takes no more, so the packet is lost
                os.write(to.device, packet)


def _open_tun(own_address: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    _run("ip", "link", "set", "dev", DEVICE, "mtu", str(MTU_BYTES), "txqueuelen", str(QUEUE_PACKETS), "up")
    _run("ip", "addr", "add", f"{own_address}/32", "dev", DEVICE)
    _run("ip", "route", "add", f"{NET}.0.0/16", "dev", DEVICE)
    return device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int)
    parser.add_argument("--kind", choices=["netem", "tun"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--with-parent", type=int)
    arguments = parser.parse_args()
    if arguments.with_parent is not None:
        die_with_parent(arguments.with_parent)
    middle = _unshare()
    kind = arguments.kind or ("netem" if has_netem() else "tun")
    links: KernelLinks | TunLinks
    if kind == "netem":
        links = KernelLinks(arguments.nodes, middle)
    else:
        links = TunLinks(arguments.nodes, random.Random(arguments.seed))
    print(json.dumps({"pid": os.getpid(), "kind": kind, "namespaces": links.namespaces}), flush=True)
    links.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
