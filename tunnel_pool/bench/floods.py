"""Measures what floods cost a node: eight live circuits through an exit of two children, alone and beside each flood.

handshakes: CREATE, each with a valid key and another circuit id, from 64 addresses
garbage:    random bytes
forged:     cells of this network with made-up circuit ids
replayed:   cells that the node has carried already
"""

import asyncio
import json
import os
import secrets
import sys
from typing import Any

import psutil
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import CellPayload, CreatePayload
from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness.datagrams import PAYLOAD_BYTES
from tunnel_pool.bench.harness.load import CIRCUITS, MB, Result, World, open_world, until_ready
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.system.errors import UserError

CHILDREN = 2
LOAD = 20 * MB  # bytes a second over all circuits
RATES = {"handshakes": 10_000, "garbage": 50_000, "forged": 50_000, "replayed": 50_000}
SAMPLES = 200
RECORDED = 64


async def measure(seconds: float) -> Result:
    """Raises UserError."""
    async with open_world(CHILDREN) as world:
        rows = {"none": await _measure(world, seconds, None, [])}
        for name in RATES:
            rows[name] = await _measure(world, seconds, name, await _datagrams(name, world))
        return rows


async def _measure(world: World, seconds: float, name: str | None, datagrams: list[bytes]) -> Result:
    before = world.node.dropped()
    rss_before = _rss(world)
    flooder = await _flood(world, name, datagrams, seconds) if name is not None else None
    got = await world.load.steady(LOAD, seconds)
    row: Result = {"mb_per_s": got / seconds / MB, "rss_grown_mb": (_rss(world) - rss_before) / MB}
    if flooder is not None:
        output, _ = await flooder.communicate()
        report = json.loads(output)
        row["flood_per_s"] = report["sent"] / report["seconds"]
    await asyncio.sleep(1.5)  # by then RPC_SYNC has told of it
    dropped = world.node.dropped() - before
    row["dropped"] = dict(dropped.most_common(4))
    if len(world.originator.find_circuits(hops=1)) < CIRCUITS:
        raise UserError("a live circuit was lost")
    return row


async def _flood(world: World, name: str, datagrams: list[bytes], seconds: float) -> asyncio.subprocess.Process:
    host, port = world.address
    kind = "new-ids" if name in ("handshakes", "forged") else "as-is"
    flooder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunnel_pool.bench.harness.flooder",
        kind, f"{host}:{port}", str(RATES[name]), str(seconds + 2),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert flooder.stdin is not None
    flooder.stdin.write(b"\n".join(datagram.hex().encode() for datagram in datagrams))
    flooder.stdin.close()
    await asyncio.sleep(1)
    return flooder


async def _datagrams(name: str, world: World) -> list[bytes]:
    prefix = world.originator.get_prefix()
    match name:
        case "garbage":
            return [secrets.token_bytes(PAYLOAD_BYTES) for _ in range(SAMPLES)]
        case "forged":
            return [prefix + bytes(7) + secrets.token_bytes(PAYLOAD_BYTES) for _ in range(SAMPLES)]
        case "handshakes":
            return [_create(world) for _ in range(SAMPLES)]
        case _:
            return await _recorded(world)


def _create(world: World) -> bytes:
    key = default_eccrypto.generate_key("curve25519").pub().key_to_bin()
    _, first_part = world.originator.crypto.generate_diffie_secret()
    payload = CreatePayload(0, secrets.randbelow(1 << 16), key, first_part)
    message = world.originator.serializer.pack_serializable(payload)[4:]
    cell = CellPayload(0, bytes([CreatePayload.msg_id]) + message)
    cell.plaintext = True
    packed: bytes = cell.to_bin(world.originator.get_prefix())
    return packed


async def _recorded(world: World) -> list[bytes]:
    """Return cells of another originator's circuit, which has sent them and goes on living."""
    config = world.config("127.0.0.4", set(), [world.address], engine=EngineChoice.PYTHON)
    recorder = await open_overlay(config)
    world.stack.push_async_callback(recorder.unload)
    recorder.settings.max_circuits = 1
    recorder.build_tunnels(1)
    circuit = (await until_ready(recorder))[0]
    cells: list[bytes] = []
    send = recorder.endpoint.send

    def record(to: tuple[str, int], packet: bytes) -> None:
        cells.append(packet)
        send(to, packet)

    recorder.endpoint.send = record
    payload = b"d" + os.urandom(PAYLOAD_BYTES - 2) + b"e"
    for _ in range(RECORDED):
        recorder.send_data(circuit.hop.address, circuit.circuit_id, world.load.destination(0), NOWHERE, payload)
    recorder.endpoint.send = send
    return cells


def _rss(world: World) -> int:
    pids = [os.getpid(), *(world.node.pool.pid(slot) or 0 for slot in world.node.pool.working())]
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)


def describe(result: dict[str, Any]) -> str:
    console = Console(width=140)
    table = Table(title=f"Floods beside {CIRCUITS} circuits of {LOAD / MB:.0f} MB/s in all, {CHILDREN} children")
    for column in ("flood", "datagrams/s", "MB/s", "kept", "RSS grown, MB", "dropped"):
        table.add_column(column, justify="left" if column in ("flood", "dropped") else "right")
    alone = result["none"]["mb_per_s"]
    for name, row in result.items():
        rate = f"{row['flood_per_s']:.0f}" if "flood_per_s" in row else "-"
        dropped = ", ".join(f"{reason} {count}" for reason, count in row["dropped"].items())
        kept = f"{row['mb_per_s'] / alone:.0%}"
        table.add_row(name, rate, f"{row['mb_per_s']:.1f}", kept, f"{row['rss_grown_mb']:.1f}", dropped)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()
