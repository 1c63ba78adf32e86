"""Take away the network device that an exit with two devices is bound to, and look whether it uses the other.

device_world.py FOLDER [unbound|daemon]

Runs in a network namespace that `unshare` made; the exit's node runs in another. The node's default route leads over
the device that it is not bound to, whose packets are counted. With `daemon`, a daemon is there that downloads over an
exit beside the seeder, and has a torrent without hops from before. Prints what happened as one JSON object.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.tunnel_pool.daemon.owner import Seeder
from tests.worlds.commands import MODULE, command
from tests.worlds.leak_world import ETH_P_ALL, ETH_P_IP, run
from tests.worlds.network import COMMUNITY_ID, WAIT_S, Echo, dht_like, make_config, until
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.system import runner

WORLD, NODE = "44.8.0.1", "44.8.0.2"
OTHER_WORLD, OTHER_NODE = "44.9.0.1", "44.9.0.2"
SEEDER = "44.10.0.1"  # which is there whatever becomes of the devices
PORT = 7000
NOWHERE = ("0.0.0.0", 0)
QUIET_S = 4


class Node:
    """A network namespace of its own, for the node under test."""

    def __init__(self):
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n"]

    def is_apart(self):
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", self._holder.pid))
        return ours != theirs

    def wire(self, name, ours, theirs):
        run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", name)
        run("ip", "link", "set", name, "netns", str(self._holder.pid))
        run("ip", "addr", "add", f"{ours}/24", "dev", f"to-{name}")
        run("ip", "link", "set", f"to-{name}", "up")
        run(*self.enter, "ip", "addr", "add", f"{theirs}/24", "dev", name)
        run(*self.enter, "ip", "link", "set", name, "up")

    def close(self):
        self._holder.kill()
        self._holder.wait()


class Listener:
    """Counts IPv4 packets that come in from a wire."""

    def __init__(self, device):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.bind((device, 0))
        self._socket.setblocking(False)

    def count(self):
        number = 0
        try:
            while True:
                frame, address = self._socket.recvfrom(2000)
                number += frame[12:14] == ETH_P_IP.to_bytes(2, "big") and address[2] != socket.PACKET_OUTGOING
        except BlockingIOError:
            return number


async def reaches_the_echo(client, echo):
    """Wait until a datagram has gone to the echo and back, over a circuit that ends at the node."""
    answers = []
    client.on_raw_data = lambda circuit, origin, data: answers.append(data)

    def asked():
        for circuit in client.find_circuits(hops=1):
            client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, NOWHERE, dht_like(b"hello"))
        return answers

    await until(asked, 60)


@asynccontextmanager
async def two_devices():
    """Yield a namespace with two devices, and a listener at the one by which its default route leads."""
    node = Node()
    try:
        await until(node.is_apart)
        node.wire("wan", WORLD, NODE)
        node.wire("lan", OTHER_WORLD, OTHER_NODE)
        run(*node.enter, "ip", "link", "set", "lo", "up")
        run("ip", "link", "set", "lo", "up")
        run(*node.enter, "ip", "route", "add", "default", "via", OTHER_WORLD)
        yield node, Listener("to-lan")
    finally:
        node.close()


async def experiment(folder, bound):
    async with two_devices() as (node, other):
        arguments = [f"--listen=0.0.0.0:{PORT}", f"--state={folder}", f"--bootstrap={WORLD}:9", "--exit"]
        arguments += [f"--community-id={COMMUNITY_ID.hex()}", "--workers=2", *(["--device=wan"] if bound else [])]
        async with command("node", *arguments, program=[*node.enter, *MODULE]) as running:
            await running.until_line(lambda line: "listening" in line)
            client = await open_overlay(make_config(frozenset(), [HostPort(NODE, PORT)], host=WORLD))
            client.settings.max_circuits = 2
            client.build_tunnels(1)
            with Echo(WORLD) as echo:
                await reaches_the_echo(client, echo)
                run("ip", "link", "del", "to-wan")
                if bound:
                    await running.until_line(lambda line: "is gone" in line)
                    await asyncio.sleep(QUIET_S)  # in which it would ask its peers, elsewhere
                    while_gone = other.count()
                    node.wire("wan", WORLD, NODE)
                    await running.until_line(lambda line: "starting anew" in line)
                    await until(lambda: sum("listening" in line for line in running.lines) == 2)
                    await reaches_the_echo(client, echo)
                else:
                    while_gone = await until(other.count, WAIT_S, "a packet elsewhere")
            await client.unload()
            running.process.terminate()
            await running.process.wait()
        return {"ok": True, "while_gone": while_gone, "in_all": while_gone + other.count()}


async def of_a_daemon(folder):
    async with two_devices() as (node, other), AsyncExitStack() as stack:
        network = [f"--community-id={COMMUNITY_ID.hex()}", "--workers=0"]
        # Its resolver is elsewhere: whatever asks it for a name is counted.
        inside = [*node.enter, "unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"']
        resolver = folder / "resolv.conf"
        resolver.write_text("nameserver 198.51.100.53\n")
        inside += [str(resolver), *MODULE]
        exit_node = await stack.enter_async_context(
            command(
                "node", f"--listen={WORLD}:{PORT}", f"--state={folder / 'exit'}", "--bootstrap=none", "--exit",
                "--allow-private", *network,
            )
        )  # fmt: skip
        await exit_node.until_line(lambda line: "listening" in line)
        run("ip", "addr", "add", f"{SEEDER}/32", "dev", "lo")
        seeder = Seeder(folder / "seeds", SEEDER)
        links = [seeder.link_to(name, {"a": 500_000}) for name in ("first", "second")]

        async def asked(*arguments):
            async with command(*arguments, "--json", program=inside) as asking:
                return (await asking.ended())[1]

        def is_there(name):
            return same_bytes(folder / "seeds" / name / "a", folder / "own" / name / "a")

        arguments = [f"--folder={folder / 'own'}", f"--state={folder / 'state'}", f"--bootstrap={WORLD}:{PORT}"]
        arguments += [f"--listen=0.0.0.0:{PORT}", *network]
        async with command("daemon", *arguments, program=inside) as running:
            await running.until_line(lambda line: "clients find them" in line)
            plain = f"magnet:?xt=urn:btih:{'ab' * 20}&tr=http://tracker.example.org/a"
            kept = await asked("add", plain, "--hops=0")
            await until(other.count, WAIT_S, "a packet elsewhere")
            running.process.terminate()
            await running.process.wait()
        other.count()
        async with command("daemon", *arguments, "--device=wan", program=inside) as running:
            await running.until_line(lambda line: "clients find them" in line)
            refused = await asked("add", links[0], "--hops=0")
            added = [await asked("add", links[0], "--hops=1")]
            await until(lambda: is_there("first"), 60)
            shown = await asked("status")
            run("ip", "link", "del", "to-wan")
            await running.until_line(lambda line: "is gone" in line)
            added.append(await asked("add", links[1], "--hops=1"))
            await asyncio.sleep(QUIET_S)
            while_gone = other.count()
            node.wire("wan", WORLD, NODE)
            await running.until_line(lambda line: "starting anew" in line)
            await until(lambda: is_there("second"), 90)
            running.process.terminate()
            code = await running.process.wait()
        return {
            "ok": True, "kept": kept, "refused": refused, "added": added, "shown": shown, "code": code,
            "while_gone": while_gone, "in_all": while_gone + other.count(),
        }  # fmt: skip


def main(folder, kind="bound"):
    return of_a_daemon(Path(folder)) if kind == "daemon" else experiment(Path(folder), kind == "bound")


if __name__ == "__main__":
    print(json.dumps(runner.run(main(*sys.argv[1:])).result))
