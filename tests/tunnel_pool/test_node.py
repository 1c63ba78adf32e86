import logging
from collections import Counter

from tunnel_pool.cli.node import _Report
from tunnel_pool.rpc.sync import CarriedState


class Tunnels:
    def __init__(self):
        self.now = CarriedState(relays=1, exits=2, relayed_bytes=5_000_000, exited_bytes=0)
        self.candidates = {"peer": [1]}

    def carried(self):
        return self.now

    def dropped(self):
        return Counter(a=2, b=3)


class Node:
    def carried(self, tunnels):
        return tunnels.now.relayed_bytes, tunnels.now.exited_bytes


def test_the_line_a_minute_tells_what_came_since_the_last(caplog):
    caplog.set_level(logging.INFO)
    tunnels = Tunnels()
    report = _Report(Node(), tunnels)
    tunnels.now = CarriedState(relays=3, exits=1, relayed_bytes=7_000_000, exited_bytes=1_500_000)
    report.log()
    assert (
        "Carried 3.5 MB for others in the last minute (relayed 2.0, exited 1.5); 3 relayed circuits, 1 exits, 1 nodes"
        in caplog.text
    )
    assert "5 datagrams dropped" in caplog.text
    report.log()
    assert "Carried 0.0 MB" in caplog.text
