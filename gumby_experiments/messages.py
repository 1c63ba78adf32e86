"""Messages from one process to another: what serializing them costs the sender, and the receiver.

python -m tunnel_pool.gumby_experiments.messages receive|send SOCKET --format F --mode M --mix X --messages N --seed S
python -m tunnel_pool.gumby_experiments.messages each         --format F --messages N --seed S

Modes: synchronous, each message answered before the next is sent; full, all of them waiting in the
receiver's buffer when it begins. A frame is length (4 bytes), kind (1), message.
"""

import argparse
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.codecs import CODECS, Codec, Values, codec
from tunnel_pool.system.errors import UserError

FRAME = struct.Struct("!IB")
ACK = b"."
SYNCHRONOUS, FULL = "synchronous", "full"
DISTINCT = 200  # messages of a mix, sent again and again
WORDS = ("debian", "ubuntu", "big", "buck", "bunny", "sintel", "linux", "iso", "1080p", "amd64", "live", "netinst")

# How often each message comes, of a hundred. `control` is what a busy child's control stream carries. Of all that
# AllChannelCommunity sends no census was found: votes and searches are many, lists of torrents few and long.
# `publishing` is the load of Stokkink 2016, 6.1.1: one node publishes 497 torrents at once, then 1 to 4 at a time.
MIXES = {
    "control": {"sync": 70, "heartbeat": 20, "build": 5, "dead": 5},
    "allchannel": {"vote": 50, "search": 20, "request": 15, "response": 10, "channelcast": 5},
    "publishing": {"torrent": 100},
}


def _peer(chance: random.Random) -> Values:
    host = ".".join(str(chance.randrange(1, 255)) for _ in range(4))
    return {"key": chance.randbytes(74), "host": host, "port": chance.randrange(1024, 65536), "flags": [1, 2, 8]}


def _circuit(chance: random.Random) -> Values:
    hops = [_peer(chance) for _ in range(chance.randrange(1, 4))]
    return {
        "id": chance.getrandbits(32), "goal": len(hops), "ctype": "DATA", "hops": hops, "closing": False,
        "up": chance.getrandbits(32), "down": chance.getrandbits(36),
        "created": chance.random() * 1e6, "active": chance.random() * 1e6,
    }  # fmt: skip


def _words(chance: random.Random, number: int) -> list[str]:
    return [chance.choice(WORDS) for _ in range(number)]


def _channel(chance: random.Random) -> Values:
    return {"cid": chance.randbytes(20), "torrents": [_torrent(chance) for _ in range(chance.randrange(1, 6))]}


def _torrent(chance: random.Random) -> Values:
    return {
        "infohash": chance.randbytes(20), "timestamp": chance.getrandbits(31), "name": " ".join(_words(chance, 5)),
        "files": [" ".join(_words(chance, 3)) for _ in range(chance.randrange(1, 8))],
        "trackers": [f"udp://{'.'.join(_words(chance, 2))}:6969/announce"],
    }  # fmt: skip


MAKERS: dict[str, Callable[[random.Random], Values]] = {
    "sync": lambda chance: {
        "circuits": [_circuit(chance) for _ in range(chance.randrange(0, 4))],
        "candidates": [_peer(chance) for _ in range(chance.randrange(0, 2))],
        "gone": [],
    },
    "heartbeat": lambda chance: {"late": chance.random()},
    "build": lambda chance: {"id": chance.getrandbits(32), "goal": 3, "ctype": "DATA", "flags": [8]},
    "dead": lambda chance: {"id": chance.getrandbits(32), "reason": "no activity"},
    "torrent": _torrent,
    "vote": lambda chance: {"cid": chance.randbytes(20), "vote": chance.randrange(3), "timestamp": 1_479_820_000},
    "search": lambda chance: {"keywords": _words(chance, 3)},
    "request": lambda chance: {"cid": chance.randbytes(20), "infohashes": [chance.randbytes(20) for _ in range(10)]},
    "response": lambda chance: {"keywords": _words(chance, 3), "channels": [_channel(chance) for _ in range(3)]},
    "channelcast": lambda chance: {"channels": [_channel(chance) for _ in range(5)]},
}
KINDS = list(MAKERS)


def mixed(mix: str, seed: int) -> list[tuple[str, Values]]:
    """Return messages as often as the mix has them, in an order that the seed shuffles."""
    chance = random.Random(seed)
    weights = MIXES[mix]
    names = [name for name, share in weights.items() for _ in range(share * DISTINCT // 100)]
    chance.shuffle(names)
    return [(name, MAKERS[name](chance)) for name in names]


def _codecs(format_name: str, messages: Sequence[tuple[str, Values]]) -> dict[str, Codec]:
    return {name: codec(format_name, name) for name in {name for name, _ in messages}}


def _again_and_again(messages: Sequence[tuple[str, Values]], number: int) -> Iterator[tuple[str, Values]]:
    for at in range(number):
        yield messages[at % len(messages)]


def send(arguments: argparse.Namespace) -> dict[str, Any]:
    messages = mixed(arguments.mix, arguments.seed)
    codecs = _codecs(arguments.format, messages)
    size_bytes = 0
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(arguments.socket))
        begun_ns = time.process_time_ns()
        for name, values in _again_and_again(messages, arguments.messages):
            body = codecs[name].encode(values)
            sock.sendall(FRAME.pack(len(body), KINDS.index(name)) + body)
            size_bytes += len(body)
            if arguments.mode == SYNCHRONOUS:
                sock.recv(1)
        used_ns = time.process_time_ns() - begun_ns
    return {"sender_us": used_ns / arguments.messages / 1000, "message_bytes": size_bytes / arguments.messages}


def receive(arguments: argparse.Namespace) -> dict[str, Any]:
    codecs = _codecs(arguments.format, mixed(arguments.mix, arguments.seed))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(arguments.socket))
        listener.listen()
        print(json.dumps({"listening": True}), flush=True)
        sock, _ = listener.accept()
        with sock, sock.makefile("rb") as file:
            if arguments.mode == SYNCHRONOUS:
                used_ns = _receive_synchronously(sock, file, codecs, arguments.messages)
            else:
                used_ns = _receive_full(file.read(), codecs)
    return {"receiver_us": used_ns / arguments.messages / 1000}


def _receive_synchronously(sock: socket.socket, file: Any, codecs: dict[str, Codec], number: int) -> int:
    begun_ns = time.process_time_ns()
    for _ in range(number):
        length, kind = FRAME.unpack(file.read(FRAME.size))
        codecs[KINDS[kind]].decode(file.read(length))
        sock.sendall(ACK)
    return time.process_time_ns() - begun_ns


def _receive_full(data: bytes, codecs: dict[str, Codec]) -> int:
    """Decode messages that have all arrived, and return the nanoseconds of CPU that this took."""
    at, end = 0, len(data)
    begun_ns = time.process_time_ns()
    while at < end:
        length, kind = FRAME.unpack_from(data, at)
        at += FRAME.size + length
        codecs[KINDS[kind]].decode(data[at - length : at])
    return time.process_time_ns() - begun_ns


def each(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every kind of message by itself, in one process."""
    rows = []
    for name, make in MAKERS.items():
        made = [make(random.Random(arguments.seed + number)) for number in range(DISTINCT)]
        one = codec(arguments.format, name)
        encoded = [one.encode(values) for values in made]
        rounds = max(1, arguments.messages // DISTINCT)
        encode_ns = _timed(one.encode, made, rounds)
        decode_ns = _timed(one.decode, encoded, rounds)
        rows.append({
            "message": name, "message_bytes": sum(map(len, encoded)) / DISTINCT,
            "encode_us": encode_ns / 1000, "decode_us": decode_ns / 1000,
        })  # fmt: skip
    return {"rows": rows}


def _timed(work: Callable[[Any], Any], items: Sequence[Any], rounds: int) -> float:
    """Return the nanoseconds of CPU that the work took for each item."""
    begun_ns = time.process_time_ns()
    for _ in range(rounds):
        for item in items:
            work(item)
    return (time.process_time_ns() - begun_ns) / rounds / len(items)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["send", "receive", "each"])
    parser.add_argument("socket", type=Path, nargs="?")
    parser.add_argument("--format", choices=[*CODECS], required=True)
    parser.add_argument("--mode", choices=[SYNCHRONOUS, FULL], default=SYNCHRONOUS)
    parser.add_argument("--mix", choices=[*MIXES], default="control")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        result = {"send": send, "receive": receive, "each": each}[arguments.role](arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"done": result}), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
