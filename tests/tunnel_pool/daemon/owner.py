"""Changes a daemon's torrents at random, as an owner does, and checks that their states are possible ones."""

import asyncio
import random
import time
from collections import deque
from pathlib import Path

import libtorrent as lt

from tests.tunnel_pool.daemon.running import make_torrent
from tests.worlds.network import unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

FILES = {"a.bin": 1_500_000, "sub/b.bin": 900_000, "c.txt": 100}
FIELDS = [
    "hash_string", "download_dir", "status", "labels", "percent_done", "error", "error_string", "wanted",
]  # fmt: skip
AT_REST_WITHIN_S = 60.0


class Seeder:
    """A plain libtorrent seeder in this process, of torrents whose files are complete."""

    def __init__(self, folder, host=None, port=0, speed=4_000_000):
        self.folder = folder
        host = host or unused_host()
        self.session = open_session(seeder_settings(host, port, speed))
        self.address = HostPort(host, self.session.listen_port())
        self.links, self.names = {}, {}

    def seed(self, name):
        """Create and seed a torrent of this name, and return its infohash."""
        parameters = lt.load_torrent_buffer(make_torrent(self.folder, name, FILES))
        infohash = str(parameters.info_hashes.v1)
        self.links[infohash] = link_of(parameters, self.address)
        self.names[infohash] = name
        self.start(parameters)
        return infohash

    def link_to(self, name, sizes):
        """Create and seed a torrent of files of these sizes, and return a magnet link that names the seeder."""
        parameters = lt.load_torrent_buffer(make_torrent(self.folder, name, sizes))
        self.start(parameters)
        return link_of(parameters, self.address)

    def start(self, parameters):
        parameters.save_path = str(self.folder)
        parameters.flags = lt.torrent_flags.seed_mode
        self.session.add_torrent(parameters)


def link_of(parameters, peer):
    return f"{lt.make_magnet_uri(parameters)}&x.pe={peer}"


class Owner:
    """Sends random requests, and keeps the possible states of each torrent; None means that it is not there.

    Several states are possible after a request that was cut off or refused: it was carried out whole or not at all.
    """

    def __init__(self, seeder, folders, hops=(0, 0, 1), rng=None, is_alone=True):
        """`hops` are the hop counts of new torrents; if none of them is 0, torrents also change among them.

        `is_alone` says that nobody else has torrents there, and that nothing happens by which a torrent could fail.
        """
        self.is_alone = is_alone
        self.seeder = seeder
        self.folders = folders
        self.hops = hops
        self.acknowledged = 0
        self.refusals = []
        self.took_s = {}  # the longest time that each kind of request took
        self._rng = rng or random.Random()
        self.may_be = {infohash: [None] for infohash in seeder.links}
        self._told = {infohash: deque(maxlen=20) for infohash in seeder.links}  # requests and answers

    async def act(self, rpc):
        infohash = self._rng.choice(list(self.may_be))
        if len(self.may_be[infohash]) > 1:
            await self.check(rpc, may_move=True)
        before, *others = self.may_be[infohash]
        if others:  # still ambiguous: which files are wanted is unknown before the metadata
            method, arguments, after = "torrent_remove", {"delete_local_data": True}, None
        else:
            method, arguments, after = self._add(infohash) if before is None else self._change(before)
        if before is not None:
            arguments["ids"] = [infohash]
        self.may_be[infohash] = [before, *others, after]
        self._told[infohash].append((method, arguments))
        began_s = time.monotonic()
        _, answer = await rpc.post({"jsonrpc": "2.0", "method": method, "params": arguments, "id": 1})
        kind = " ".join([method, *(name for name in arguments if name != "ids")])
        self.took_s[kind] = max(self.took_s.get(kind, 0.0), round(time.monotonic() - began_s, 2))
        if "result" in answer:
            self.may_be[infohash] = [after]
            self.acknowledged += 1
            self._told[infohash].append("acknowledged")
        else:
            self.refusals.append(answer["error"]["message"])
            self._told[infohash].append(answer["error"]["message"])

    def _add(self, infohash):
        folder, hops = self._rng.choice(self.folders), self._rng.choice(self.hops)
        after = {"folder": folder, "stopped": False, "labels": ["new"], "hops": hops, "wanted": None}
        link = self.seeder.links[infohash]
        return "torrent_add", {"filename": link, "download_dir": folder, "labels": ["new", f"hops:{hops}"]}, after

    def _change(self, before):
        """Return a random method, its arguments, and the torrent's state afterwards."""
        after = dict(before)
        kinds = ["move", "stop", "start", "label", "select", "remove", "delete"] + ["hops"] * (0 not in self.hops)
        match self._rng.choice(kinds):
            case "move":
                after["folder"] = self._rng.choice(self.folders)
                return "torrent_set_location", {"location": after["folder"], "move": True}, after
            case "stop" | "start" as what:
                after["stopped"] = what == "stop"
                return f"torrent_{what}", {}, after
            case "label":
                after["labels"] = [f"label-{self._rng.randrange(1000)}"]
                return "torrent_set", {"labels": after["labels"]}, after
            case "hops":
                after["hops"] = self._rng.choice(self.hops)
                return "torrent_set", {"hops": after["hops"], "confirm_fewer_hops": True}, after
            case "select":
                wanted = [self._rng.random() < 0.6 for _ in FILES]
                after["wanted"] = list(map(int, wanted))
                chosen = {"files_wanted": [i for i, is_wanted in enumerate(wanted) if is_wanted]}
                chosen["files_unwanted"] = [i for i, is_wanted in enumerate(wanted) if not is_wanted]
                return "torrent_set", {name: files for name, files in chosen.items() if files}, after
            case "remove" | "delete" as what:
                return "torrent_remove", {"delete_local_data": what == "delete"}, None

    @staticmethod
    async def _at_rest(rpc):
        """Return the torrents once none of their files is checked, which is shown in place of what else they do."""
        deadline_s = time.monotonic() + AT_REST_WITHIN_S
        while True:
            torrents = (await rpc.call("torrent_get", {"fields": FIELDS}))["torrents"]
            checked = [torrent for torrent in torrents if torrent["status"] in (1, 2)]
            if not checked:
                return torrents
            assert time.monotonic() < deadline_s, checked
            await asyncio.sleep(0.1)

    async def check(self, rpc, may_move=False):
        """Check that each torrent is in a possible state; with `may_move`, a move need not be complete yet.

        Returns the state of every torrent by infohash, including torrents of others.
        """
        there = {}
        for torrent in await self._at_rest(rpc):
            infohash = torrent["hash_string"]
            assert infohash not in there, "doubled"
            assert not self.is_alone or torrent["error"] == 0, (torrent, self._told[infohash])
            *labels, hops = torrent["labels"]
            there[infohash] = {
                "folder": torrent["download_dir"], "stopped": torrent["status"] == 0, "labels": labels,
                "hops": int(hops.removeprefix("hops:")), "wanted": torrent["wanted"],
            }  # fmt: skip
        assert not self.is_alone or there.keys() <= self.may_be.keys()
        for infohash, states in self.may_be.items():
            found = there.get(infohash)
            held = [state for state in states if self._is(found, state, may_move)]
            assert held, (infohash, found, states, self._told[infohash])
            self._told[infohash].append("checked")
            self.may_be[infohash] = held if None not in held else [None]
        return there

    def _is(self, found, state, may_move):
        """Return whether the torrent found may be in this state; its wanted files are known once the metadata is.

        If the owner is not alone, disks may be full, so that any move may fail: each of the folders is right.
        """
        if found is None or state is None:
            return found is state
        same = all(found[name] == state[name] for name in ("stopped", "labels", "hops"))
        is_there = found["folder"] == state["folder"]
        if may_move or not self.is_alone:
            is_there = found["folder"] in self.folders
        return same and is_there and (state["wanted"] is None or found["wanted"] in (state["wanted"], []))


def right_files(seeder, torrent):
    """Return whether a complete torrent's files are the seeder's."""
    name = seeder.names[torrent["hash_string"]]
    here, there = seeder.folder / name, Path(torrent["download_dir"]) / name
    return all(same_bytes(here / path, there / path) for path in FILES)
