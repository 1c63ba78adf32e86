"""The configuration file of the daemon; docs/daemon.toml is a sample with every table."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from tunnel_pool.daemon.rules.hops import HopRules, check_labels, checked_hops
from tunnel_pool.system.toml_file import Section, read_toml

NOTHING: Mapping[str, int] = MappingProxyType({})


class HopTables(Section, frozen=True):
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    folders: dict[str, int] = msgspec.field(default_factory=dict)


class Watch(Section, frozen=True):
    """A folder from which .torrent and .magnet files are added."""

    folder: str
    hops: int | None = None
    labels: list[str] = msgspec.field(default_factory=list)
    download_to: str | None = None
    stopped: bool | None = None

    def __str__(self) -> str:
        """Return it as the option `--watch` has it."""
        told = {"hops": self.hops, "labels": "+".join(self.labels) or None, "download_to": self.download_to}
        words = [f"{key}={value}" for key, value in told.items() if value is not None]
        return ";".join([self.folder, *words, *(["stopped=true"] if self.stopped else [])])


class DaemonConfig(Section, frozen=True):
    daemon: dict[str, object] = msgspec.field(default_factory=dict)
    hops: HopTables = msgspec.field(default_factory=HopTables)
    folders: dict[str, str] = msgspec.field(default_factory=dict)
    watch: list[Watch] = msgspec.field(default_factory=list)

    def rules(
        self, default: int, labels: Mapping[str, int] = NOTHING, folders: Mapping[str, int] = NOTHING
    ) -> HopRules:
        """Return the hop rules; what the command line says by label and by folder goes before the file."""
        return HopRules(default, {**self.hops.labels, **labels}, {**self.hops.folders, **folders})


def read_config(path: Path) -> DaemonConfig:
    """Raises UserError: which key is wrong, and how."""
    return read_toml(path, DaemonConfig, _check)


def _check(config: DaemonConfig) -> None:
    """Check what types alone don't say. Raises ValueError."""
    for table in (config.hops.labels, config.hops.folders):
        for hops in table.values():
            checked_hops(hops)
    for watch in config.watch:
        checked_watch(watch)
    for folder in (*config.hops.folders, *config.folders.values()):
        check_whole(folder)


def checked_watch(watch: Watch) -> Watch:
    """Raises ValueError."""
    check_labels(watch.labels)
    HopRules().hops(None if watch.hops is None else checked_hops(watch.hops), watch.labels, "/")
    for folder in filter(None, (watch.folder, watch.download_to)):
        check_whole(folder)
    return watch


def check_whole(folder: str) -> None:
    """Raises ValueError."""
    if not os.path.isabs(folder):
        raise ValueError(f"{folder!r}: name a folder by its whole path, from /")
