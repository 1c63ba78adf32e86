from pathlib import Path

from ipv8.loader import CommunityLauncher, overlay, precondition, set_in_session, walk_strategy


@set_in_session("tunnel_community")
@precondition("session.rust_endpoint is not None")
@walk_strategy("tribler.core.tunnel.discovery", "GoldenRatioStrategy", -1)
@overlay("tribler.core.tunnel.community", "TriblerTunnelCommunity")
class TunnelComponent(CommunityLauncher):
    def get_my_peer(self, ipv8, session):
        return ipv8.keys["anonymous id"]

    def get_kwargs(self, session):
        return {
            "exitnode_cache": Path(session.config["folder"]) / "exitnode_cache.dat",
            "notifier": session.notifier,
            "download_manager": session.download_manager,
            "min_circuits": 3,
            "max_circuits": 4,
            "default_hops": 1,
            "dht_provider": None,
        }

    def get_bootstrappers(self, session):
        raise AssertionError("over a pool the children have their own")
