"""Sends a flood of datagrams at a node: run by `tunnel-pool bench floods`, on this machine alone.

python -m tunnel_pool.bench.harness.flooder KIND HOST:PORT RATE SECONDS; what it sends comes in hexadecimal, by line, on
stdin. It prints how many datagrams it sent. KIND is `as-is`, or `new-ids`: each with another circuit id.
"""

import json
import random
import socket
import sys
import time

SOURCES = 64  # how many addresses of 127.0.0.0/8 it seems to come from
ID_AT = slice(23, 27)
BATCH_S = 0.002


def main() -> None:
    kind, where, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    host, port = where.rsplit(":", 1)
    to = host, int(port)
    datagrams = [bytes.fromhex(line) for line in sys.stdin]
    chance = random.Random(1)
    sockets = []
    for _ in range(SOURCES):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((f"127.{chance.randrange(16, 200)}.{chance.randrange(1, 250)}.{chance.randrange(1, 250)}", 0))
        sockets.append(sock)
    sent = 0
    start_s = now_s = time.monotonic()
    while (now_s := time.monotonic()) < start_s + seconds:
        while sent < rate * (now_s - start_s):
            datagram = datagrams[sent % len(datagrams)]
            if kind == "new-ids":
                changed = bytearray(datagram)
                changed[ID_AT] = chance.getrandbits(32).to_bytes(4, "big")
                datagram = bytes(changed)
            sockets[sent % SOURCES].sendto(datagram, to)
            sent += 1
        time.sleep(BATCH_S)
    print(json.dumps({"sent": sent, "seconds": now_s - start_s}))


if __name__ == "__main__":
    main()
