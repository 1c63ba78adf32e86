from ipv8.peerdiscovery.discovery import DiscoveryStrategy


class GoldenRatioStrategy(DiscoveryStrategy):
    def take_step(self):
        raise AssertionError("over a pool the children walk")
