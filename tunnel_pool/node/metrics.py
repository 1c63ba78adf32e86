"""A node's status in Prometheus' format; names by its conventions (prometheus.io/docs/practices/naming)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class NodeCollector(Collector):
    """Reads the node's status at each scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        ways = ["role", "direction"]
        circuits = status["circuits"]
        by_role = {role: circuits[role] for role in ("relayed", "exits", "own")}
        carried = "Carried, by whose traffic it is; up: sent."
        yield family(CounterMetricFamily, "tunnel_pool_bytes", carried, ways, _each_way(status["bytes"]))
        strangers = "Of strangers that came in at exits, to circuits that have asked to be found."
        for unit, number in status["strangers"].items():
            yield CounterMetricFamily(f"tunnel_pool_strangers_{unit}", strangers, number)
        refused = "Datagrams dropped or refused."
        yield family(CounterMetricFamily, "tunnel_pool_dropped", refused, ["reason"], status["dropped"])
        opened = "Open now, by what we do for them."
        yield family(GaugeMetricFamily, "tunnel_pool_circuits", opened, ["role"], by_role)
        streams = "TCP connections that circuits carry now, by whose they are."
        yield family(GaugeMetricFamily, "tunnel_pool_streams", streams, ["role"], status["streams"])
        yield CounterMetricFamily("tunnel_pool_circuits_joined", "Handshakes that ended well.", circuits["joined"])
        yield GaugeMetricFamily("tunnel_pool_candidates", "Nodes known.", status["candidates"])
        yield GaugeMetricFamily("tunnel_pool_exits_known", "Nodes known that are exits.", status["exits_known"])
        yield GaugeMetricFamily("tunnel_pool_uptime_seconds", "Since the start.", status["uptime_s"])
        yield from _limits(status)
        yield from children_metrics(status["children"])


def _limits(status: dict[str, Any]) -> Iterator[Metric]:
    limited = {where: rate for where, rate in _each_way(status["limits"]).items() if rate is not None}
    name = "tunnel_pool_limit_bytes_per_second"
    yield family(GaugeMetricFamily, name, "Of what is limited now.", ["role", "direction"], limited)
    waiting = status["waiting"]
    yield family(GaugeMetricFamily, "tunnel_pool_waiting_circuits", "That wait for a limit.", ["role"], waiting)
    if status["quota_left"] is not None:
        yield GaugeMetricFamily("tunnel_pool_quota_left_bytes", "Of this month's.", status["quota_left"])


def children_metrics(rows: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of the processes, as the status has them."""
    children = {"main" if child["slot"] is None else str(child["slot"]): child for child in rows}
    alive = {slot: child for slot, child in children.items() if "pid" in child}
    up = {(slot, child["state"]): int(slot in alive) for slot, child in children.items()}
    yield family(GaugeMetricFamily, "tunnel_pool_child_up", "Whether it is there.", ["slot", "state"], up)
    for kind, name, what, key, those in (
        (CounterMetricFamily, "tunnel_pool_child_restarts", "Of the slot.", "restarts", children),
        (CounterMetricFamily, "tunnel_pool_child_cpu_seconds", "User and system.", "cpu_s", alive),
        (GaugeMetricFamily, "tunnel_pool_child_resident_bytes", "Of memory.", "rss_bytes", alive),
    ):
        yield family(kind, name, what, ["slot"], {slot: child[key] for slot, child in those.items()})


def _each_way(by_role: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(role, way): number for role, ways in by_role.items() for way, number in ways.items()}


def family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    what: str,
    labels: list[str],
    numbers: Mapping[Any, float],
) -> Metric:
    """Return a metric whose `numbers` are by the label's value, or by a tuple of values if there are several labels."""
    family = kind(name, what, labels=labels)
    for values, number in numbers.items():
        family.add_metric([values] if isinstance(values, str) else list(values), number)
    return family


def exposition(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
