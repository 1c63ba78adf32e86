"""Tests that docs/CLI.md matches the argument parsers."""

from tests.worlds.commands import ROOT
from tunnel_pool.cli import reference


def test_the_page_of_the_commands_is_fresh():
    assert (ROOT / "docs/CLI.md").read_text() == reference.markdown()
