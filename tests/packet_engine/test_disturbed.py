"""Loss, repetition and reordering between two nodes change nothing but speed."""

import asyncio
from collections import Counter

import pytest

from tests.packet_engine.disturber import Disturber
from tests.worlds.commands import command
from tests.worlds.network import Echo, address_of, dht_like, network, tunnels, until
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

NUMBER = 600
SEED = 3


def numbered(number):
    return dht_like(f"{number:06}".encode() + bytes(100))


@pytest.fixture(params=["plain", "pooled"])
def kind(request):
    return request.param


async def circuit_over(client):
    client.build_tunnels(1)
    await until(lambda: client.tunnels_ready(1) == 1.0)
    return client.find_circuits(hops=1)[0]


async def test_each_datagram_arrives_once_whatever_the_order(engine, kind):
    async with network() as (node,):
        rates = {"loss": 0.05, "repeats": 0.2, "held": 0.3}
        with Echo() as echo, Disturber(address_of(node), SEED, **rates) as disturber:
            async with tunnels(kind, [disturber.address], workers=1, circuits=1) as client:
                circuit = await circuit_over(client)
                answers = []
                client.on_raw_data = lambda circuit, origin, data: answers.append(data)
                for number in range(NUMBER):
                    client.send_data(
                        circuit.hop.address, circuit.circuit_id, echo.address, ("0.0.0.0", 0), numbered(number)
                    )
                    await asyncio.sleep(0.0005 if number % 20 == 0 else 0)
                await until(lambda: len(disturber.forwarded) + disturber.cells["lost"] >= NUMBER)
                await until(lambda: len(echo.received) == len(disturber.forwarded))
                seen = Counter(data for data, _ in echo.received)
                assert set(seen.values()) == {1}
                assert disturber.cells["repeated"] > NUMBER / 20
                assert disturber.cells["held"] > NUMBER / 20
                order = [data for data, _ in echo.received]
                assert order != sorted(order)  # it did come out of order
                # Every repeated cell was refused where it arrived, by name.
                await until(
                    lambda: (
                        node.dropped()["cell_replayed"] + client.dropped()["cell_replayed"]
                        == disturber.cells["repeated"]
                    ),
                    what="every repeated cell refused",
                )
                assert set(Counter(answers).values()) == {1}


async def test_a_replayed_cell_is_refused_and_counted(engine):
    async with network() as (node,):
        with Echo() as echo, Disturber(address_of(node), SEED) as disturber:
            async with tunnels("plain", [disturber.address], circuits=1) as client:
                circuit = await circuit_over(client)
                for number in range(20):
                    client.send_data(
                        circuit.hop.address, circuit.circuit_id, echo.address, ("0.0.0.0", 0), numbered(number)
                    )
                await until(lambda: len(echo.received) == 20)
                for cell in disturber.forwarded:
                    disturber.inject(cell)
                await until(lambda: node.dropped()["cell_replayed"] == len(disturber.forwarded))
                assert len(echo.received) == 20
                # The circuit is none the worse.
                client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, ("0.0.0.0", 0), numbered(20))
                await until(lambda: len(echo.received) == 21)


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", ["native", "python"])
async def test_a_download_through_a_bad_network(engine_name, tmp_path):
    size_bytes = 5 << 20
    async with LocalSwarm(size_bytes, seeders=1, exits=1, relays=0, log_level="error") as swarm:
        rates = {"loss": 0.01, "repeats": 0.03, "held": 0.05}
        with Disturber(swarm.exits[0], SEED, **rates) as disturber:
            arguments = ["download", swarm.torrent, "--workers=1", f"--save={tmp_path}", f"--state={tmp_path / 's'}"]
            arguments += [f"--peer={swarm.seeders[0]}", f"--bootstrap={disturber.address}"]
            arguments += [f"--listen={swarm.client_host}:0", f"--community-id={swarm.community_id.hex()}"]
            async with command(*arguments, f"--engine={engine_name}", "--json") as download:
                code, report, lines = await download.ended()
        assert code == 0, lines
        assert min(disturber.cells["lost"], disturber.cells["repeated"], disturber.cells["held"]) > 0
        assert report["dropped"]["cell_replayed"] > 0
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
