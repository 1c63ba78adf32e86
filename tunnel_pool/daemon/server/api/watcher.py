"""Looks at the daemon once a second: what it used, how fast it is, and what has happened."""

import time
from collections import Counter, deque

import msgspec
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT

from tunnel_pool import __version__
from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.pool import PoolControl
from tunnel_pool.daemon.server.api import model, views
from tunnel_pool.daemon.server.api.happenings import Seen
from tunnel_pool.daemon.server.rows import Rows
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.node.status import children_of
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.system.measure import CpuMeter
from tunnel_pool.torrent.network_words import way_out_in_words

HISTORY_S = 600


class Watcher:
    """Remembers ten minutes of the daemon: call `look` once a second. `rows` are torrents as the API shows them."""

    def __init__(self, library: Library, tunnels: Tunnels, control: PoolControl) -> None:
        self.library = library
        self.tunnels = tunnels
        self.control = control
        self._started_s = time.monotonic()
        self._cpu = CpuMeter()
        self.history: deque[model.Sample] = deque(maxlen=HISTORY_S)
        self.rows = Rows(lambda torrent: msgspec.json.encode(views.torrent_view(torrent)))
        self.look()

    def look(self) -> None:
        self.pool = self._look_at_pool()
        status = self.status()
        children = self.pool.children
        sample = model.Sample(
            time_s=round(time.time(), 3),
            down_bytes_per_s=status.down_bytes_per_s,
            up_bytes_per_s=status.up_bytes_per_s,
            main_cpu=sum(child.cpu for child in children if child.slot is None),
            children_cpu=sum(child.cpu for child in children if child.slot is not None),
            circuits_ready=status.circuits_ready,
            rss_bytes=sum(child.rss_bytes for child in children),
        )
        self.history.append(sample)

    def state(self) -> model.State:
        """Return status and circuits as they are now, the pool and the sample as of the last look."""
        circuits = views.circuits_view(self.tunnels, self.library.sessions)
        return model.State(status=self.status(), pool=self.pool, circuits=circuits, sample=self.history[-1])

    def seen(self) -> Seen:
        return Seen(
            {torrent.hash_string: views.shown_state(torrent).value for torrent in self.library.torrents.values()},
            {str(circuit.circuit_id): circuit.state for circuit in self.tunnels.circuits.values()},
            {str(child.slot): child.state for child in self.pool.children if child.slot is not None},
        )

    def _look_at_pool(self) -> model.Pool:
        now_s = time.monotonic()
        circuits = self._circuits_by_slot()
        rows = children_of(self.tunnels)
        self._cpu.forget_all_but({row.get("pid") for row in rows})
        return model.Pool(
            workers=model.Workers(*workers) if (workers := self.control.workers()) is not None else None,
            children=[
                model.Child(
                    slot=row["slot"],
                    state=row["state"],
                    pid=row.get("pid"),
                    cpu=round(self._cpu.cores(row.get("pid"), now_s), 4),
                    cpu_s=row.get("cpu_s", 0.0),
                    rss_bytes=row.get("rss_bytes", 0),
                    circuits=circuits[row["slot"]],
                    restarts=row["restarts"],
                )
                for row in rows
            ],
        )

    def _circuits_by_slot(self) -> Counter[int | None]:
        is_pooled = self.tunnels.pool is not None
        return Counter(slot_of(circuit_id) if is_pooled else None for circuit_id in self.tunnels.circuits)

    def status(self) -> model.Status:
        down, up = self.library.rates()
        return model.Status(
            version=__version__,
            uptime_s=round(time.monotonic() - self._started_s, 1),
            torrents=len(self.library.torrents),
            down_bytes_per_s=down,
            up_bytes_per_s=up,
            circuits_ready=views.ready_circuits(self.tunnels),
            streams=views.open_streams(self.tunnels),
            candidates=len(self.tunnels.candidates),
            exits=len(self.tunnels.get_candidates(PEER_FLAG_EXIT_BT)),
            way_out=way_out_in_words(self.tunnels),
        )

    def recent(self, seconds: int) -> list[model.Sample]:
        """Return the samples of the last `seconds`, oldest first."""
        return list(self.history)[-seconds:]
