"""Verbs that fetch through a network: ours, or a private network of Tor, over the same links."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.nodes import tor_network
from tunnel_pool.gumby_experiments.nodes.nodes import Node
from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.nodes.tor_network import Authority
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node, of_the_run
from tunnel_pool.gumby_experiments.verbs.swarm import EXIT, RELAY, SwarmModule

TOR = "tor"
HOPS = {"1_hop": 1, "3_hops": 3}  # by the name of a network of ours
AUTHORITY, SERVER, CLIENT = "authority", "server", "client"
BOOTSTRAPPED = re.compile(r"(Bootstrapped 100%)")


def why_not() -> str | None:
    """Return why there can be no network of Tor here, None when there can."""
    missing = [program for program in ("tor", "tor-gencert") if shutil.which(program) is None]
    return f"comparing with Tor needs {' and '.join(missing)}: apt-get install tor" if missing else None


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 where all shares are equal, down to one by their number where one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


async def _output(*command: str, given: bytes = b"") -> str:
    """Return what a command writes. Raises RunError."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate(given))[0].decode(errors="replace")
    if process.returncode != 0:
        raise RunError(f"{command[0]} failed: {output.strip()[-300:]}")
    return output


class BulkModule(SwarmModule):
    """Has a network stand between a client and a server, and fetches from the one to the other."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._authorities: list[Authority] = []
        self._hops: int | None = None  # of our circuits; Tor's have three
        self._circuits = 0

    @of_a_node
    async def start_server(self, number: int, ports: str) -> None:
        """Start the server, which listens at so many ports: each is another destination."""
        node = self._run.node(number)
        await node.start([sys.executable, "-m", "tunnel_pool.gumby_experiments.bulk", "serve", node.host,
                          f"--ports={ports}"])  # fmt: skip
        await node.heard("ports")

    @of_the_run
    async def start_network(self, network: str) -> None:
        """Start relays and exits, ours for circuits of `1_hop` or `3_hops`, or those of `tor` and its authorities."""
        if network == TOR:
            if why := why_not():
                raise RunError(why)
            await self._start_tor()
            return
        if network not in HOPS:
            raise RunError(f"{network!r} is no network; there are {', '.join([*HOPS, TOR])}")
        self._hops = HOPS[network]
        for number in self.numbers_of(EXIT):
            await self.start_exit(number)
        for number in self.numbers_of(RELAY) if self._hops > 1 else ():
            await self.start_relay(number)

    @of_a_node
    async def start_client(self, number: int, circuits: str) -> None:
        """Start the client, and wait until it can be used."""
        self._circuits = int(circuits)
        node = self._run.node(number)
        if self._hops is None:
            await self._start_tor_node(number, tor_network.client(self._authorities))
            await node.logged(BOOTSTRAPPED)
            return
        await node.start([
            sys.executable, "-m", "tunnel_pool.gumby_experiments.nodes.socks_node", "--workers=1",
            f"--circuits={circuits}", f"--hops={self._hops}", *self.client_arguments(node),
        ])  # fmt: skip
        await node.heard("port")

    @of_a_node
    async def fetch(self, number: int, seconds: str, after: str = "0") -> None:
        """Fetch from all ports of the server at the client, and set the metrics of so many seconds `after` others."""
        client = self._run.node(number)
        port = tor_network.SOCKS_PORT if self._hops is None else client.said["port"]
        users = [f"--users={self._circuits}"] if self._hops is None else []
        self._run.sampler.sample()
        before = self._run.sampler.cpu_seconds()
        more = [f"--socks={port}", *self.servers(), f"--seconds={seconds}", f"--after={after}", *users]
        done = await self.at(client, "fetch", *more)
        self._run.sampler.sample()
        later = self._run.sampler.cpu_seconds()
        carried_gb = done["mb_per_s"] * (float(after) + float(seconds)) / 1000
        used_s = sum(later.get(role, 0.0) - before.get(role, 0.0) for role in (CLIENT, RELAY, EXIT))
        self._run.metrics |= {
            "mb_per_s": round(done["mb_per_s"], 3),
            "jain": round(jain(done["streams_mb_per_s"]), 4),
            "added_delay_ms": round(done["loaded_ms"] - done["empty_ms"], 2),
            "network_cpu_s_per_gb": round(used_s / carried_gb, 2),
        }

    def servers(self) -> list[str]:
        (server,) = self._run.with_role(SERVER)
        return [f"--server={server.host}:{port}" for port in server.said["ports"]]

    @staticmethod
    async def at(node: Node, *arguments: str) -> Any:
        """Return what the program says in the end that does the fetching, where the node is. Raises RunError."""
        output = await node.run_there(sys.executable, "-m", "tunnel_pool.gumby_experiments.bulk", *arguments)
        return json.loads(output)["done"]

    async def _start_tor(self) -> None:
        """Start authorities, relays and exits, and wait until they are in a consensus. Raises RunError."""
        self._authorities = [await self._authority(number) for number in self.numbers_of(AUTHORITY)]
        for number, role in self._run.roles.items():
            node = self._run.node(number)
            name, host = f"{role}{number}", node.host
            if role == AUTHORITY:
                await self._start_tor_node(number, tor_network.authority(name, host))
            elif role == RELAY:
                await self._start_tor_node(number, tor_network.relay(name, host))
            elif role == EXIT:
                await self._start_tor_node(number, tor_network.exit_relay(name, host))

    async def _authority(self, number: int) -> Authority:
        """Make an authority's keys. Raises RunError."""
        node = self._run.node(number)
        name, keys = f"{AUTHORITY}{number}", _data_of(node.folder) / "keys"
        keys.mkdir(parents=True, mode=0o700)
        _data_of(node.folder).chmod(0o700)
        certificate = keys / "authority_certificate"
        await _output(
            "tor-gencert", "--create-identity-key", "--passphrase-fd", "0", "-m", "12",
            "-a", f"{node.host}:{tor_network.DIR_PORT}", "-i", str(keys / "authority_identity_key"),
            "-s", str(keys / "authority_signing_key"), "-c", str(certificate), given=b"test\n",
        )  # fmt: skip
        await _output(
            "tor", "--ignore-missing-torrc", "-f", "/dev/null", "--defaults-torrc", "/dev/null", "--list-fingerprint",
            "--orport", "1", "--datadirectory", str(_data_of(node.folder)), "--nickname", name,
        )  # fmt: skip
        relay = (_data_of(node.folder) / "fingerprint").read_text().split()[1]
        return Authority(name, node.host, tor_network.identity_of(certificate.read_text()), relay)

    async def _start_tor_node(self, number: int, more: list[str]) -> None:
        node = self._run.node(number)
        folder = _data_of(node.folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        torrc = node.folder / "torrc"
        torrc.write_text("\n".join([*tor_network.common(folder, self._authorities), *more, ""]))
        await node.start(["tor", "--defaults-torrc", "/dev/null", "-f", str(torrc)])


def _data_of(folder: Path) -> Path:
    return folder / "tor"
