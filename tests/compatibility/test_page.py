"""Tests that docs/COMPATIBILITY.md is what was found."""

import json

from tests.compatibility.page import page
from tests.worlds.commands import ROOT


def test_the_page_is_that_of_what_was_found():
    found = json.loads((ROOT / "tests" / "compatibility" / "found.json").read_text())
    assert (ROOT / "docs" / "COMPATIBILITY.md").read_text() == page(found)
