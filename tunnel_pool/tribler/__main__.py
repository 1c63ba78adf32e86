"""python -m tunnel_pool.tribler [our options] [Tribler's own arguments]: Tribler with its tunnels on every core."""

import argparse
import asyncio
import importlib
import sys
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.parser import OneLineParser
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.rpc.sync import NOTHING_CARRIED, CarriedState
from tunnel_pool.system import runner
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.tribler.community import AdoptionOptions, adopt
from tunnel_pool.tunnels import ANYWHERE

PROGRAM = "python -m tunnel_pool.tribler"
DESCRIPTION = """Start Tribler 8 with tunnel-pool's community in the place of its own.

Tribler's sources have to be on the path: PYTHONPATH=/path/to/tribler/src.
What is not named here goes to Tribler as it is: a torrent, -s, --log-level ..."""


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_workers_option(parser, default="auto")
    options.add_engine_option(parser)
    options.add_bootstrap_option(parser)
    parser.add_argument(
        "--listen",
        type=values.host_port,
        default=ANYWHERE,
        metavar="IP:PORT",
        help="UDP address of the first worker; the others have the ports above (default: any address, any port)",
    )
    parser.add_argument("--allow-private", action="store_true", help="exit to private addresses, too; for tests")
    return parser


def adoption_options(arguments: argparse.Namespace) -> AdoptionOptions:
    """Raises UsageError."""
    if arguments.workers.most == 0:
        raise UsageError("--workers 0 is Tribler by itself: start it without tunnel-pool")
    options.check_ports(arguments)
    bootstrap_default, bootstrap = arguments.bootstrap
    return AdoptionOptions(
        workers=arguments.workers,
        start_method=StartMethod(arguments.start_method),
        engine=EngineChoice(arguments.engine),
        listen=arguments.listen,
        bootstrap_default=bootstrap_default,
        bootstrap=bootstrap,
        allow_private=arguments.allow_private,
        steering=arguments.steering == "auto",
    )


class Adoption:
    """Puts our classes where Tribler's core looks for its own, before it looks."""

    def __init__(self, adopted: AdoptionOptions) -> None:
        """Raises UserError when there is no Tribler to be found, or one that we don't know."""
        self.session: Any = None
        try:
            # Any: what is patched is not known to the types.
            core: Any = importlib.import_module("tribler.core.session")
            components: Any = importlib.import_module("tribler.core.components")
            tunnel: Any = importlib.import_module("tribler.core.tunnel.community")
            self.program: Any = importlib.import_module("run_tribler")
            circuit_removed = importlib.import_module("tribler.core.notifier").Notification.circuit_removed
            self._patch(core, components, tunnel, adopt(tunnel.TriblerTunnelCommunity, adopted, circuit_removed))
        except ModuleNotFoundError as error:
            where = "set PYTHONPATH=/path/to/tribler/src and install what Tribler needs"
            raise UserError(f"Tribler can't be imported ({error}): {where}") from None
        except SyntaxError as error:
            version = sys.version.split()[0]
            raise UserError(f"this Tribler is not for Python {version} ({error}): take a newer Python") from None
        except AttributeError as error:
            raise UserError(f"this Tribler is not like the 8.4 that tunnel-pool knows: {error}") from None

    def _patch(self, core: Any, components: Any, tunnel: Any, community_class: type) -> None:
        adoption = self

        class Endpoint(core.RustEndpoint):
            """Serves Tribler's other overlays as their endpoint; SOCKS5 is served where the tunnels are."""

            def create_socks5_server(self, port: int, hops: int) -> int:
                return int(adoption.socks5_endpoint(super()).create_socks5_server(port, hops))

            def get_socks5_statistics(self) -> list[dict[str, int]]:
                return list(adoption.socks5_endpoint(super()).get_socks5_statistics())

        class AllEndpoints(core.IPv8Endpoint):
            """Counts the bytes of the tunnels beside those of Tribler's own endpoint."""

            @property
            def bytes_up(self) -> int:
                return int(super().bytes_up) + adoption.carried().sent_bytes

            @property
            def bytes_down(self) -> int:
                return int(super().bytes_down) + adoption.carried().received_bytes

        class Session(core.Session):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                adoption.session = self

        # Walking and bootstrapping are the children's.
        components.TunnelComponent.get_walk_strategies = lambda self: []
        components.TunnelComponent.get_bootstrappers = lambda self, session: []
        tunnel.TriblerTunnelCommunity = community_class
        core.RustEndpoint = Endpoint
        core.IPv8Endpoint = AllEndpoints
        core.Session = self.program.Session = Session

    def socks5_endpoint(self, otherwise: Any) -> Any:
        """Return what serves SOCKS5: Tribler's own endpoint, when its configuration has no tunnels."""
        community = getattr(self.session, "tunnel_community", None)
        return otherwise if community is None else community.crypto_endpoint

    def carried(self) -> CarriedState:
        """Return what the children have sent and received, nothing when the configuration has no tunnels."""
        community = getattr(self.session, "tunnel_community", None)
        return community.carried() if community is not None else NOTHING_CARRIED

    async def run(self) -> bool:
        """Run Tribler's main; being cancelled shuts it down in order. Return whether it wants to be started again."""
        running = asyncio.ensure_future(self.program.main())
        try:
            return bool(await asyncio.shield(running))
        except asyncio.CancelledError:
            if self.session is None or running.done():
                raise
            self.session.shutdown_event.set()
            await running
            return False


def main(argv: list[str]) -> int:
    """Run Tribler over a pool; return the exit code."""
    parser = make_parser()
    arguments, theirs = parser.parse_known_args(argv)
    sys.argv = ["tribler", *theirs]
    try:
        adoption = Adoption(adoption_options(arguments))
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    while True:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            ended = runner.run(adoption.run(), loop)
        finally:
            loop.close()
        if ended.signal is not None or not ended.result:
            return ended.exit_code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
