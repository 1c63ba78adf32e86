"""Stands in for Tribler's tunnel community, as far as its downloads use the community class below it."""

import hashlib
import time

from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity, HiddenTunnelSettings
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_EXIT_BT
from ipv8.peerdiscovery.network import Network
from ipv8.taskmanager import task


class TriblerTunnelSettings(HiddenTunnelSettings):
    exitnode_cache = None
    notifier = None
    download_manager = None
    exitnode_enabled = False
    default_hops = 0


class TriblerTunnelCommunity(HiddenTunnelCommunity):
    community_id = bytes(range(20))
    settings_class = TriblerTunnelSettings

    def __init__(self, settings):
        super().__init__(settings)
        self.settings.endpoint = self.crypto_endpoint
        self.bittorrent_peers = {}
        self.states = {}
        if settings.exitnode_cache is not None:
            self.register_task("restore", self.restore_exitnodes_from_disk, delay=0.5)
        self.register_task("poll", self.poll, interval=0.5)

    def poll(self):
        self.monitor_downloads(self.settings.download_manager.downloads)

    def monitor_downloads(self, downloads):
        needed = {}
        states = {}
        for download in downloads:
            hops = download.config.get_hops()
            needed[hops] = self.settings.max_circuits
            states[self.lookup_hash(download)] = (hops, download.seeding)
        for statistics in self.crypto_endpoint.get_socks5_statistics():
            if statistics["hops"] in needed:
                needed[statistics["hops"]] = max(needed[statistics["hops"]], 2 * statistics["associates"])
        self.circuits_needed = needed
        for info_hash, state in states.items():
            if self.states.get(info_hash) != state:
                self.join_swarm(info_hash, state[0], self.linked(info_hash), seeding=state[1])
            if state[1] and info_hash not in {c.info_hash for c in self.find_circuits(CIRCUIT_TYPE_IP_SEEDER, None)}:
                self.create_introduction_point(info_hash)
        for info_hash in self.states.keys() - states.keys():
            self.leave_swarm(info_hash)
        self.states = states

    def lookup_hash(self, download):
        return hashlib.sha1(b"tribler anonymous download" + download.infohash.hex().encode()).digest()

    def linked(self, info_hash):
        def add(address):
            for download in self.settings.download_manager.downloads:
                if self.lookup_hash(download) == info_hash:
                    download.add_peer(address)

        return add

    def update_torrent(self, peers, download):
        self.bittorrent_peers.setdefault(download, set()).update(peers)
        if self.find_circuits():
            self.readd_bittorrent_peers()

    def readd_bittorrent_peers(self):
        for download, peers in self.bittorrent_peers.items():
            for peer in peers:
                download.add_peer(peer)
        self.bittorrent_peers = {}

    def restore_exitnodes_from_disk(self):
        raise AssertionError("over a pool there is no endpoint to send from")

    def get_candidates(self, *requested_flags):
        return super().get_candidates(*requested_flags)

    @task
    async def create_introduction_point(self, info_hash, required_ip=None):
        for hops, port in self.settings.download_manager.listen_ports.items():
            self.crypto_endpoint.set_udp_associate_default_remote(("127.0.0.1", port), hops)
        await super().create_introduction_point(info_hash, required_ip=required_ip)

    @task
    async def remove_circuit(self, circuit_id, additional_info="", remove_now=False, destroy=False):
        raise AssertionError("over a pool there is one way for a circuit to go")

    async def unload(self):
        exits = Network()
        for peer in self.get_candidates(PEER_FLAG_EXIT_BT):
            exits.add_verified_peer(peer)
        self.settings.exitnode_cache.write_bytes(exits.snapshot())
        self.unloaded_at = time.time()
        await super().unload()
