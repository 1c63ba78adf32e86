"""Tests the reader and the writer of the data stream, on real pipes."""

import asyncio
import os

import pytest

from tunnel_pool.rpc import data as dataframe
from tunnel_pool.rpc.streams import DatagramReader, DatagramWriter

ADDRESS = b"\x01\x7f\x00\x00\x01\x1a\xe1"


class Received:
    def __init__(self):
        self.datagrams = []
        self.lost = []
        self.changed = asyncio.Event()

    def on_datagram(self, *datagram):
        self.datagrams.append(datagram)
        self.changed.set()

    def on_lost(self, why):
        self.lost.append(why)
        self.changed.set()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


async def test_datagrams_arrive_in_order(loop):
    read_fd, write_fd = os.pipe()
    received = Received()
    reader = DatagramReader(read_fd, loop, received.on_datagram, received.on_lost)
    writer = DatagramWriter(write_fd, loop)
    sent = [(i, ADDRESS, bytes([i]) * 1400) for i in range(200)]
    for datagram in sent:
        assert writer.send(*datagram)
    await received.until(lambda: len(received.datagrams) == 200)
    assert received.datagrams == sent
    writer.close()
    await received.until(lambda: received.lost)
    assert received.lost == ["end of file"]
    reader.close()


async def test_a_full_stream_drops_and_counts_and_never_blocks(loop):
    read_fd, write_fd = os.pipe()
    writer = DatagramWriter(write_fd, loop, pending_bytes=100_000)
    for i in range(1000):
        writer.send(i, ADDRESS, bytes(1400))
        if i % 10 == 0:
            await asyncio.sleep(0)
    assert writer.dropped > 0
    assert writer.dropped + writer.sent == 1000
    assert writer.pending_bytes <= 100_000 + 1500
    # What was taken arrives whole once somebody reads.
    received = Received()
    reader = DatagramReader(read_fd, loop, received.on_datagram, received.on_lost)
    await received.until(lambda: len(received.datagrams) == writer.sent)
    assert all(len(payload) == 1400 for _, _, payload in received.datagrams)
    writer.close()
    reader.close()


async def test_a_broken_stream_is_told_once(loop):
    read_fd, write_fd = os.pipe()
    received = Received()
    DatagramReader(read_fd, loop, received.on_datagram, received.on_lost)
    os.write(write_fd, dataframe.encode(1, ADDRESS, b"x") + bytes(64))
    await received.until(lambda: received.lost)
    os.close(write_fd)
    assert len(received.lost) == 1
    assert "not a data frame" in received.lost[0]


async def test_a_writer_whose_reader_is_gone_closes_itself(loop):
    read_fd, write_fd = os.pipe()
    writer = DatagramWriter(write_fd, loop)
    os.close(read_fd)
    writer.send(1, ADDRESS, b"x")
    await asyncio.sleep(0)
    assert not writer.send(1, ADDRESS, b"x")
    with pytest.raises(OSError):
        os.fstat(write_fd)
