"""Stands in for Tribler's run_tribler.py: runs the download in STANDIN (JSON) until it is asked to shut down."""

import asyncio
import json
import logging
import os
import sys

from ipv8.REST.overlays_endpoint import OverlaysEndpoint
from ipv8.REST.tunnel_endpoint import TunnelEndpoint
from tribler.core.session import Session


async def main():
    logging.basicConfig(level=os.environ.get("STANDIN_LOG", "ERROR"))
    config = json.loads(os.environ["STANDIN"])
    assert sys.argv == ["tribler", "-s", "--log-level", "ERROR"], "Tribler's own arguments are handed on"
    session = Session(config)
    await session.start()
    download = session.download_manager.add(
        config["torrent"], config["hops"], config["save"], map(tuple, config["peers"]), config["seeding"]
    )
    watching = asyncio.ensure_future(watch(session, download))
    watching.add_done_callback(lambda watched: watched.cancelled() or watched.result())  # a failure is logged
    await session.shutdown_event.wait()
    watching.cancel()
    await session.shutdown()
    print(json.dumps({"shut_down": True, "circuits_removed": session.notifier.count["circuit_removed"]}), flush=True)
    return False


async def watch(session, download):
    view = TunnelEndpoint()
    view.tunnels = session.tunnel_community
    torrents = session.download_manager.session(download.config.get_hops())
    while not all(status.finished for status in torrents.statuses):
        await torrents.wait_changed(0.2)
    await session.tunnel_community.update_statistics()
    circuits = json.loads((await view.get_circuits(None)).body.decode())["circuits"]
    overlays = OverlaysEndpoint()
    overlays.initialize(session.ipv8)
    (overlay,) = json.loads((await overlays.get_overlays(None)).body.decode())["overlays"]
    print(json.dumps({"finished": True, "circuits": circuits, "overlay": overlay}), flush=True)
