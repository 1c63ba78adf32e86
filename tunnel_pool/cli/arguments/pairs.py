"""Tables of the daemon's configuration on the command line: KEY=VALUE,KEY=VALUE."""

import argparse
from typing import Any

import msgspec

from tunnel_pool.daemon.config import Watch, check_whole, checked_watch
from tunnel_pool.daemon.rules.hops import checked_hops


def pairs(text: str) -> dict[str, str]:
    """Parse KEY=VALUE pairs with commas between; a key may hold no comma."""
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.rpartition("=")
        if not equals or not key or not value:
            raise argparse.ArgumentTypeError(f"{part!r} is not KEY=VALUE")
        found[key] = value
    return found


def hop_pairs(text: str) -> dict[str, int]:
    try:
        return {key: checked_hops(value) for key, value in pairs(text).items()}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder_hop_pairs(text: str) -> dict[str, int]:
    found = hop_pairs(text)
    try:
        for folder in found:
            check_whole(folder)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def watches(text: str) -> list[Watch]:
    """Parse DIR[;hops=H][;labels=A+B][;download_to=DIR][;stopped=true], with commas between."""
    return [_watch(part) for part in filter(None, text.split(","))]


def _watch(text: str) -> Watch:
    folder, *settings = text.split(";")
    fields: dict[str, Any] = {"folder": folder}
    for setting in settings:
        key, _, value = setting.partition("=")
        fields[key] = value.split("+") if key == "labels" else value == "true" if key == "stopped" else value
    try:
        return checked_watch(msgspec.convert(fields, Watch, strict=False))
    except (msgspec.ValidationError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
