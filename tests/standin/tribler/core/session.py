from asyncio import Event
from pathlib import Path

from ipv8.loader import IPv8CommunityLoader
from ipv8.messaging.interfaces.dispatcher.endpoint import DispatcherEndpoint
from ipv8_rust_tunnels import Endpoint as RustEndpoint
from ipv8_service import IPv8

from tribler.core.components import TunnelComponent
from tribler.core.download_manager import DownloadManager
from tribler.core.notifier import Notifier


class IPv8Endpoint(DispatcherEndpoint):
    pass


class Session:
    def __init__(self, config):
        self.config = config
        self.shutdown_event = Event()
        self.notifier = Notifier()
        self.download_manager = DownloadManager(config["folder"])
        self.rust_endpoint = RustEndpoint(0, config["host"], 1)
        keys = [{"alias": "anonymous id", "generation": "curve25519", "file": str(Path(config["folder"]) / "key.pem")}]
        settings = {"keys": keys, "overlays": [], "logger": {"level": "ERROR"}, "walker_interval": 0.5}
        self.ipv8 = IPv8(settings, endpoint_override=self.rust_endpoint)
        self.loader = IPv8CommunityLoader()

    async def start(self):
        self.loader.set_launcher(TunnelComponent())
        self.loader.load(self.ipv8, self)
        await self.ipv8.start()
        self.download_manager.socks_listen_ports = [
            self.rust_endpoint.create_socks5_server(0, hops) for hops in (1, 2, 3)
        ]

    async def shutdown(self):
        await self.ipv8.stop()
        await self.download_manager.shutdown()
