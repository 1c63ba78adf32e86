"""The daemon in Prometheus' format; names by its conventions, no name of a torrent or peer among them."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.server.loop_meter import LoopMeter
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.node.metrics import children_metrics, family
from tunnel_pool.node.status import children_of

LOOP_DELAY = "tunnel_pool_loop_delay_seconds"


class DaemonCollector(Collector):
    """Reads the daemon's state at each scrape."""

    def __init__(self, library: Library, tunnels: Tunnels, loop: LoopMeter) -> None:
        self._library = library
        self._loop = loop
        self._tunnels = tunnels

    def collect(self) -> Iterator[Metric]:
        torrents = list(self._library.torrents.values())
        kinds = Counter((torrent.activity.value, str(torrent.record.hops)) for torrent in torrents)
        yield family(GaugeMetricFamily, "tunnel_pool_torrents", "That are kept.", ["activity", "hops"], kinds)
        payload: Counter[tuple[str, str]] = Counter()
        for torrent in torrents:
            hops = str(torrent.record.hops)
            payload["down", hops] += torrent.status.total_payload_download
            payload["up", hops] += torrent.status.total_payload_upload
        rates: Counter[tuple[str, str]] = Counter()
        for torrent in torrents:
            rates["down", str(torrent.record.hops)] += torrent.down_rate
            rates["up", str(torrent.record.hops)] += torrent.up_rate
        name = "tunnel_pool_torrent_payload_bytes_per_second"
        yield family(GaugeMetricFamily, name, "Of all torrents, now.", ["direction", "hops"], rates)
        carried = "Of torrents that are there, since the start."
        # A torrent that is removed takes its bytes along: no counter, by Prometheus' conventions.
        yield family(GaugeMetricFamily, "tunnel_pool_torrent_payload_bytes", carried, ["direction", "hops"], payload)
        circuits = Counter((circuit.ctype, circuit.state) for circuit in self._tunnels.circuits.values())
        yield family(GaugeMetricFamily, "tunnel_pool_own_circuits", "Open now.", ["type", "state"], circuits)
        yield GaugeMetricFamily("tunnel_pool_candidates", "Nodes known.", len(self._tunnels.candidates))
        dropped = self._library.sessions.dropped() + self._tunnels.dropped()
        yield family(CounterMetricFamily, "tunnel_pool_dropped", "Datagrams dropped.", ["reason"], dropped)
        late = "Delay of a timer of 100 ms: how long whatever comes next on the event loop waits."
        yield HistogramMetricFamily(LOOP_DELAY, late, buckets=self._loop.buckets(), sum_value=self._loop.sum_s)
        yield from children_metrics(children_of(self._tunnels))
