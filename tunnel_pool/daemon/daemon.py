"""The daemon: tunnels, torrents and the HTTP server, opened and closed in order."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.loading import load, take_leftovers_of
from tunnel_pool.daemon.changes.moves import Moves
from tunnel_pool.daemon.config import Watch
from tunnel_pool.daemon.done_script import DoneScript
from tunnel_pool.daemon.done_webhook import DoneWebhook
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds.feeds import Feeds
from tunnel_pool.daemon.network_watch import NetworkWatch
from tunnel_pool.daemon.outside.client import WebClient
from tunnel_pool.daemon.outside.urls import Place
from tunnel_pool.daemon.pool import PoolControl
from tunnel_pool.daemon.rules.hops import HopRules
from tunnel_pool.daemon.server.api import model
from tunnel_pool.daemon.server.api.events import Events
from tunnel_pool.daemon.server.api.feeds import FeedsApi
from tunnel_pool.daemon.server.api.operations import Api
from tunnel_pool.daemon.server.api.server import add_api
from tunnel_pool.daemon.server.api.watcher import Watcher
from tunnel_pool.daemon.server.entrance import Entrance
from tunnel_pool.daemon.server.guard import may_listen
from tunnel_pool.daemon.server.loop_meter import LoopMeter
from tunnel_pool.daemon.server.metrics import DaemonCollector
from tunnel_pool.daemon.server.page_server import add_page
from tunnel_pool.daemon.server.qbittorrent.server import add_qbittorrent
from tunnel_pool.daemon.server.stream_server import add_streams
from tunnel_pool.daemon.server.transmission.methods import Methods
from tunnel_pool.daemon.server.tribler import add_tribler
from tunnel_pool.daemon.server.web import WebOptions, add_metrics, add_rpc, add_web_root, make_app, new_session_id
from tunnel_pool.daemon.storage.store import Store, StoreError
from tunnel_pool.daemon.torrents.library import TICK_S, Library
from tunnel_pool.daemon.torrents.sessions import SessionOptions, Sessions
from tunnel_pool.daemon.upkeep.alerts import AlertReader
from tunnel_pool.daemon.upkeep.incomplete import Incomplete
from tunnel_pool.daemon.upkeep.watchdog import Watchdog
from tunnel_pool.daemon.watch import keep_watch
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.wire.device import DeviceWatch
from tunnel_pool.system import systemd
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.http_server import serving_app
from tunnel_pool.torrent.blocklist import NOTHING, Blocklist
from tunnel_pool.torrent.isolation import PLAIN
from tunnel_pool.torrent.network_words import way_out_in_words
from tunnel_pool.tunnels import NodeOptions, open_tunnels

# The options that SIGHUP applies; the others are used at the start only.
APPLIED = frozenset((
    "blocklist", "config", "folder", "folders-of-labels", "hops", "hops-of-folders", "hops-of-labels", "host-name",
    "log-level", "min-free", "rpc-password-file", "rpc-user", "trusted-proxy", "watch", "workers",
))  # fmt: skip

BACKUP_INTERVAL_S = 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    node: NodeOptions
    folder: Path | None = None  # where downloads go; None: where a client said, else here
    web: WebOptions = field(default_factory=WebOptions)
    sessions: SessionOptions = field(default_factory=SessionOptions)
    rules: HopRules = field(default_factory=HopRules)
    folders_by_label: Mapping[str, str] = field(default_factory=dict)
    watches: Sequence[Watch] = ()
    min_free_bytes: int = 1 << 30
    script_done: Path | None = None  # a program that runs when a torrent was downloaded
    script_limit_s: float = 3600.0
    webhook_done: Place | None = None  # what is told when a torrent was downloaded
    blocked: Blocklist = NOTHING
    settle_s: float = 0.0  # how long a new torrent waits for its client to say more of it
    config: model.Config = field(default_factory=lambda: model.Config(options={}))  # as the API shows it


class Daemon:
    """A running daemon: `running` opens it; `until_stopped` ends when it is told to, or can't go on."""

    def __init__(
        self, options: DaemonOptions, tunnels: Tunnels, library: Library, store: Store, client: WebClient
    ) -> None:
        self.tunnels = tunnels
        self.library = library
        self.options = options
        self.changes = Changes(library, options.rules, dict(options.folders_by_label))
        self.watchdog = Watchdog(library, self.changes.hops)
        self.incomplete = Incomplete(library, self.changes.moves)
        self.network = NetworkWatch(lambda: way_out_in_words(tunnels))
        self.pool = PoolControl(tunnels)
        self.feeds = Feeds(store, client, self.changes, lambda: hops_outside(self.changes.rules, library))
        self.stopping = asyncio.Event()
        self.events: Events
        self.address: HostPort

    def apply(self, options: DaemonOptions) -> list[str]:
        """Apply these options from now on; return the names of changed ones that need a restart.

        Raises UserError, and applies none of them then.
        """
        before = self.options
        if not may_listen(self.address.host, options.web.credentials):
            raise UserError(f"the daemon needs a password, as it listens at {self.address} until a restart")
        if options.node.workers != before.node.workers:
            try:
                self.pool.scale(*options.node.workers)
            except RequestError as error:
                raise UserError(f"workers: {error}") from None
        left = [
            name
            for name, setting in options.config.options.items()
            if name not in APPLIED and setting.value != before.config.options[name].value
        ]
        kept = {name: setting for name, setting in before.config.options.items() if name not in APPLIED}
        self.options = replace(options, config=model.Config(options={**options.config.options, **kept}))
        if options.blocked != before.blocked:
            _block(self.library.sessions, options.blocked)
        self.changes.rules = options.rules
        self.changes.folders_by_label = dict(options.folders_by_label)
        self.library.scheduler.room.min_free_bytes = options.min_free_bytes
        if options.folder is not None and options.folder != before.folder:
            records = self.library.records
            records.settings = msgspec.structs.replace(records.settings, folder=str(options.folder))
        return left

    async def until_stopped(self) -> None:
        """Raises UserError, and DeviceIsAnotherError when the device is back with sockets that are bound to nothing."""
        device = DeviceWatch(self.options.node.device) if self.options.node.device else None
        next_backup_s = time.monotonic() + BACKUP_INTERVAL_S
        watchdog_s = systemd.watchdog_interval_s()
        while not self.stopping.is_set():
            if watchdog_s is not None:
                systemd.tell("WATCHDOG=1")
            if why := self.tunnels.failure():
                raise UserError(why)
            if device is not None:
                device.look()
            self.library.scheduler.tick()
            self.library.places.look()
            self.incomplete.look()
            if time.monotonic() >= next_backup_s:
                next_backup_s += BACKUP_INTERVAL_S
                self.library.background.spawn(self.library.back_up())
            self.watchdog.look()
            self.network.look(time.monotonic())
            self.events.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(TICK_S, watchdog_s or TICK_S)):
                    await self.stopping.wait()


def hops_outside(rules: HopRules, library: Library) -> int:
    """Return over how many hops the daemon asks the web: those of a torrent of which nothing else is said, or one."""
    return max(1, rules.hops(None, (), library.records.settings.folder))


def _block(sessions: Sessions, blocked: Blocklist) -> None:
    sessions.block(blocked)
    if blocked.ranges:
        logger.info("%d ranges of addresses are blocked for torrents without hops", len(blocked.ranges))
    if blocked.bad_lines:
        logger.warning("%d lines of the block lists can't be read, and are passed over", blocked.bad_lines)


@asynccontextmanager
async def running(options: DaemonOptions) -> AsyncIterator[Daemon]:
    """Raises UserError."""
    async with AsyncExitStack() as stack:
        store = Store(options.node.state_dir)
        was_ended = await store.open()
        stack.push_async_callback(store.close)
        tunnels = await open_tunnels(options.node)
        stack.push_async_callback(tunnels.unload)
        sessions = Sessions(tunnels, options.sessions, options.node.device)
        library = Library(
            store,
            tunnels,
            sessions,
            min_free_bytes=options.min_free_bytes,
            settle_s=options.settle_s,
            isolation=options.sessions.isolation,
        )
        client = WebClient(tunnels, tunnel_all_tls=options.sessions.private, device=options.node.device)
        if options.script_done is not None:
            script = DoneScript(options.script_done, options.script_limit_s)
            library.on_done.append(script.run_for)
            stack.push_async_callback(script.close)
        if options.webhook_done is not None:
            webhook = DoneWebhook(options.webhook_done, client, lambda: hops_outside(options.rules, library))
            library.on_done.append(webhook.run_for)
            stack.push_async_callback(webhook.close)
        _block(sessions, options.blocked)
        await stack.enter_async_context(_noting_the_end(store, library))
        stack.push_async_callback(sessions.stop)
        moves = Moves(library)
        sessions.on_alert = AlertReader(library, moves).read
        sessions.on_reachable = library.scheduler.tick
        try:
            interrupted = await load(
                library, moves, str(options.folder) if options.folder is not None else None, was_ended
            )
        except StoreError as error:
            raise UserError(f"cannot read the torrents that were kept: {error}") from None
        stack.push_async_callback(library.save)
        await library.back_up()
        await sessions.resumed()
        library.background.spawn(take_leftovers_of(library, interrupted))
        for torrent in library.torrents.values():
            library.tell_done(torrent)  # of what was done before, and not told
        daemon = Daemon(options, tunnels, library, store, client)
        for torrent in library.torrents_of(PLAIN):
            daemon.changes.hops.warn(torrent)
        stack.push_async_callback(daemon.feeds.close)
        try:
            await daemon.feeds.start()
        except StoreError as error:
            raise UserError(f"cannot read the feeds that were kept: {error}") from None
        loop_meter = LoopMeter()
        stack.callback(loop_meter.stop)
        entrance = Entrance()
        app = _app(daemon, loop_meter, entrance)
        watching = asyncio.get_running_loop().create_task(
            keep_watch(lambda: daemon.options.watches, daemon.changes, daemon.library.records)
        )
        stack.callback(watching.cancel)
        daemon.address = await stack.enter_async_context(
            serving_app(
                app,
                options.web.listen,
                "cannot listen on",
                "; choose another --rpc",
                partial(entrance.visitor_of, lambda: daemon.options.web.credentials),
            )
        )
        yield daemon


@asynccontextmanager
async def _noting_the_end(store: Store, library: Library) -> AsyncIterator[None]:
    """Note in the store that the run ended in order, if nothing is raised and all resume data was written."""
    yield
    if library.is_saved:
        try:
            await store.end_run()
        except StoreError as error:
            logger.warning("Files of torrents will be checked at the next start: %s", error)


def _app(daemon: Daemon, loop_meter: LoopMeter, entrance: Entrance) -> web.Application:
    """Return the application that answers everything over HTTP."""
    library, changes = daemon.library, daemon.changes
    app = make_app(lambda: daemon.options.web, entrance)
    session_id = new_session_id()
    add_rpc(app, Methods(library, changes, session_id, daemon.stopping.set), session_id)
    add_metrics(app, DaemonCollector(library, daemon.tunnels, loop_meter))
    watcher = Watcher(library, daemon.tunnels, daemon.pool)
    daemon.events = Events(watcher)
    add_api(app, Api(watcher, changes, lambda: daemon.options.config), FeedsApi(daemon.feeds), daemon.events)
    add_tribler(app, library, changes)
    add_qbittorrent(
        app,
        library,
        changes,
        daemon.tunnels,
        daemon.feeds,
        entrance=entrance,
        credentials=lambda: daemon.options.web.credentials,
        stop=daemon.stopping.set,
    )
    add_streams(app, library)
    add_page(app)
    if (root := daemon.options.web.web_root) is not None:
        add_web_root(app, root)
    app.on_shutdown.append(daemon.events.close)
    return app
