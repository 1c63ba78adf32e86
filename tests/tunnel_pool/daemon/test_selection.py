"""Tests the choice of a torrent's wanted files: it survives `kill -9`, and files wanted later are downloaded."""

import asyncio
import os

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.owner import Seeder, link_of
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import connected, daemon, make_torrent, seen
from tests.worlds.network import unused_host
from tunnel_pool.daemon.record import NORMAL, UNWANTED
from tunnel_pool.daemon.rules.selection import distrust_ends, newly_wanted
from tunnel_pool.private_swarm.swarm import same_bytes

FILES = {f"{name}.bin": 300_000 + 7_000 * number for number, name in enumerate("abcdef")}  # pieces go over their ends
PIECE_BYTES = 16384
ODD = [1, 3, 5]  # files, whose neighbours are not among them


@pytest.fixture
def metainfo(tmp_path):
    return lt.load_torrent_buffer(make_torrent(tmp_path / "seeds", "six", FILES, PIECE_BYTES))


@pytest.fixture
def seeder(tmp_path, metainfo):
    seeder = Seeder(tmp_path / "seeds")
    seeder.start(metainfo)
    return seeder


@pytest.fixture
def link(metainfo, seeder):
    return link_of(metainfo, seeder.address)


@pytest.fixture
def arguments():
    return ["--workers=0", "--hops=0", f"--listen={unused_host()}:0"]


def names_in(metainfo):
    layout = metainfo.ti.layout()
    return [os.path.basename(layout.file_path(index)) for index in range(layout.num_files())]


async def half_downloaded(rpc, client, link, unwanted):
    """Download all but the unwanted files, and wait until the torrent is finished.

    From then on, the stored resume data says of each piece whether it is wanted.
    """
    await rpc.call("torrent_add", {"filename": link, "files_unwanted": unwanted})
    await seen(client, 1, lambda torrent: torrent.percent_done == 1 and torrent.done_date)


async def kill(running):
    running.process.kill()
    await running.process.wait()


@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12))])
async def test_files_that_were_wanted_before_a_kill_are_downloaded_after_it(
    attempt, metainfo, link, arguments, tmp_path
):
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await half_downloaded(rpc, await connected(address), link, ODD)
        await rpc.call("torrent_set", {"ids": [1], "files_wanted": ODD})
        await kill(running)
    async with daemon(tmp_path, *arguments) as (_, address):
        torrent = await seen(await connected(address), 1, lambda torrent: torrent.percent_done == 1)
        assert torrent.size_when_done == sum(FILES.values())
    for path in FILES:
        assert same_bytes(tmp_path / "seeds" / "six" / path, tmp_path / "downloads" / "six" / path)


async def test_files_that_were_unwanted_before_a_kill_are_so_after_it(metainfo, link, arguments, tmp_path):
    unwanted = [0, *ODD]
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await half_downloaded(rpc, await connected(address), link, ODD)
        await rpc.call("torrent_set", {"ids": [1], "files_unwanted": [0]})
        await kill(running)
    async with daemon(tmp_path, *arguments) as (_, address):
        torrent = await seen(await connected(address), 1, lambda torrent: torrent.status != "checking")
        wanted = sum(FILES[name] for index, name in enumerate(names_in(metainfo)) if index not in unwanted)
        assert torrent.size_when_done < wanted + 2 * PIECE_BYTES * (len(FILES) - len(unwanted))


@pytest.mark.slow
async def test_the_rest_of_a_finished_part_is_downloaded_when_it_is_wanted(link, arguments, tmp_path):
    """All of its peers are seeders that libtorrent let go when the part was finished."""
    async with daemon(tmp_path, *arguments) as (_, address), Rpc(address) as rpc:
        client = await connected(address)
        await half_downloaded(rpc, client, link, ODD)
        await seen(client, 1, lambda torrent: torrent.fields["peersConnected"] == 0)
        await asyncio.sleep(2)  # until libtorrent has looked for peers once more
        await rpc.call("torrent_set", {"ids": [1], "files_wanted": ODD})
        await seen(client, 1, lambda torrent: torrent.percent_done < 1)
        await seen(client, 1, lambda torrent: torrent.percent_done == 1, timeout_s=25)


def test_the_first_and_last_pieces_of_files_wanted_of_late_are_fetched_again(metainfo):
    layout = metainfo.ti.layout()
    metainfo.have_pieces = [True] * metainfo.ti.num_pieces()
    metainfo.unfinished_pieces = {0: [True], 2: [True]}
    distrust_ends(metainfo, [0, 99])
    last = (layout.file_size(0) - 1) // PIECE_BYTES
    assert [piece for piece, have in enumerate(metainfo.have_pieces) if not have] == [0, last]
    assert list(metainfo.unfinished_pieces) == [2]


def test_a_file_is_wanted_of_late_when_it_was_not_before():
    assert newly_wanted([UNWANTED, NORMAL, UNWANTED], [NORMAL, NORMAL, UNWANTED], 4) == [0]
    assert newly_wanted([NORMAL, UNWANTED], [], 3) == [1]
    assert newly_wanted([UNWANTED], [NORMAL], 0) == []
