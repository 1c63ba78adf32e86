"""Tests that Prometheus gets every metric that the dashboard queries, and nothing that names a torrent."""

import json
import re

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon
from tests.worlds.commands import ROOT


def asked_for():
    """Return the names of metrics in the dashboard's queries."""
    dashboard = json.loads((ROOT / "contrib" / "grafana-daemon.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert queries
    return {name for query in queries for name in re.findall(r"tunnel_pool_\w+", query)}


async def test_the_dashboard_asks_for_what_is_there_and_no_name_of_a_torrent_is(tmp_path):
    async with daemon(tmp_path, "--workers=1") as (running, address), Rpc(address) as rpc:
        link = f"magnet:?xt=urn:btih:{'a' * 40}&dn=something+secret"
        await rpc.call("torrent_add", {"filename": link, "paused": True, "labels": ["quiet"]})
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as response:
            text = await response.text()
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    # Nothing was dropped and no circuit is there yet: these have no samples, but their families are told.
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert asked_for() <= samples | families
    assert "secret" not in text
    assert "a" * 40 not in text
    assert "quiet" not in text
