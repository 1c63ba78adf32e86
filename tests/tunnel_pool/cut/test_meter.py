"""Tests `tunnel-pool cut` on a program with known flows, and on a run of our own."""

import json

import pytest

from tests.worlds.commands import command

PROGRAM = '''
"""A source makes blocks, a mill works on them, a shelf keeps what is short of them."""
import sys, threading, time

class Source:
    def blocks(self, number):
        mill = Mill()
        for _ in range(number):
            mill.grind(bytes(1000))

class Mill:
    def __init__(self):
        self.shelf = Shelf()

    def grind(self, block):
        helper(lambda: sum(i * i for i in range(3000)))
        assert self.shelf.keep(block[:100], ("127.0.0.1", 80), 300) == b"kept"

class Shelf:
    def keep(self, piece, address, number):
        return b"kept"

def helper(work):
    return work()

Source().blocks(int(sys.argv[1]))
sys.exit(int(sys.argv[2]))
'''
COMPONENTS = """
stays = "shelf"
[components.source]
code = ["__main__:Source"]
[components.mill]
code = ["__main__:Mill"]
[components.shelf]
code = ["__main__:Shelf"]
[boundaries.wrong]
what = "all but the source"
apart = ["mill"]
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "components.toml").write_text(COMPONENTS)
    return tmp_path


async def test_bytes_and_calls_are_counted_and_the_mill_is_cut_off(program):
    saved = program / "profile.json"
    arguments = [f"--components={program / 'components.toml'}", f"--save={saved}", f"--plot={program / 'cut.svg'}"]
    async with command("cut", *arguments, "--json", "--", program / "program.py", "400", "0") as running:
        code, report, lines = await running.ended()
    flows = {
        (flow["first"], flow["second"]): (flow["bytes"], flow["calls"])
        for flow in json.loads(saved.read_text())["flows"]
    }
    # A block; a piece of it, an address, a number of two bytes, and the answer.
    assert flows["mill", "source"] == (400 * 1000, 401)
    assert flows["mill", "shelf"] == (400 * (100 + 7 + 2 + 4), 400)
    assert report["goes"] == "mill"
    assert report["cpu"]["mill"] > 0.8
    assert report["cut"]["goes"] == ["mill", "source"]
    (boundary,) = report["boundaries"]
    assert not boundary["is_minimum"]
    assert code == 1, lines  # 1, because the boundary is not the minimum cut
    assert "mill" in (program / "cut.svg").read_text()


async def test_a_program_that_fails_is_told_in_one_line(program):
    arguments = [f"--components={program / 'components.toml'}"]
    async with command("cut", *arguments, "--", program / "program.py", "1", "3") as running:
        code, _, lines = await running.ended()
    assert code == 1
    assert lines[-1].startswith("tunnel-pool cut: the program failed")


OWN_DEMO = ["-m", "tunnel_pool", "demo", "--workers=0", "--engine=python", "--steering=off", "--size=40"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "costliest"),
    [(["--size=100"], {"engine", "endpoint"}), (["--", *OWN_DEMO, "--hops=3"], {"engine"})],
    ids=["one hop", "three hops"],
)
async def test_a_run_of_today_asks_for_the_deployed_boundaries(arguments, costliest):
    """Over one hop the engine's CPU is like the endpoint's; over three it stands out."""
    async with command("cut", "--json", *arguments) as running:
        code, report, lines = await running.ended()
    assert code == 0, (report, lines)
    assert all(boundary["is_minimum"] for boundary in report["boundaries"])
    assert report["goes"] in costliest
