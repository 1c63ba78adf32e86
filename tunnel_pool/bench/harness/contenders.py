"""The contenders of benchmarks: our engines, and the peers that are on PyPI, each at its defaults and at its best."""

import sys
from dataclasses import dataclass

from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import MALLOC_SETTINGS
from tunnel_pool.pool.program import own_executable


@dataclass(frozen=True, slots=True)
class Contender:
    """A program that downloads, relays and exits."""

    name: str
    what: str
    engine: EngineChoice | None = None  # an engine of ours
    peer: str | None = None  # or a kind of peer in tunnel_pool.bench.harness.peer
    raised: bool = False  # every UDP socket with 4 MiB of buffers, as with the system's defaults raised
    threads: int = 4

    def node_command(self) -> list[str]:
        """Return the command that takes the arguments of `tunnel-pool node`."""
        if self.engine is not None:
            return [*own_executable(), "node", f"--engine={self.engine.value}"]
        return [*self._peer_command(), "node"]

    def downloader_command(self) -> list[str]:
        """Return the command of a peer that downloads (tunnel_pool/bench/harness/peer.py)."""
        return [*self._peer_command(), "download"]

    def _peer_command(self) -> list[str]:
        more = ["--raised"] if self.raised else []
        return [
            sys.executable,
            "-m",
            "tunnel_pool.bench.harness.peer",
            str(self.peer),
            f"--threads={self.threads}",
            *more,
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment variables that it runs best with."""
        return MALLOC_SETTINGS if self.raised and self.peer == "pyipv8" else {}


ALL = [
    Contender("native", "ours, the native engine", engine=EngineChoice.NATIVE),
    Contender("python", "ours, the Python engine", engine=EngineChoice.PYTHON),
    Contender("pyipv8", "pyipv8's Python endpoint", peer="pyipv8"),
    Contender("pyipv8-best", "the same, buffers raised, malloc tuned", peer="pyipv8", raised=True),
    Contender("rust-tunnels", "ipv8-rust-tunnels, 4 threads (its default)", peer="rust"),
    Contender("rust-tunnels-best", "the same, buffers raised", peer="rust", raised=True),
    Contender("rust-tunnels-best-1", "the same, buffers raised, one thread", peer="rust", raised=True, threads=1),
]
BY_NAME = {contender.name: contender for contender in ALL}
