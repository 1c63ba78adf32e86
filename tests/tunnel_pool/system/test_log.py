"""Tests the log: its files, its lines in the journal, and the suppression of repeated lines."""

import logging
import os
import shlex
import stat
import subprocess
import sys

import pytest

from tests.worlds.commands import ROOT
from tunnel_pool.cli.main import make_parser
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.log import FILE_BYTES, PrivateFileHandler, RepeatFilter, set_up_logging
from tunnel_pool.system.repeats import LINES_OF_A_KIND, MAX_KINDS, Repeats

COMPLAIN = "import logging, tunnel_pool.system.log as log; log.set_up_logging('info'); logging.warning('one\\ntwo')"


def test_files_are_private_and_begun_anew_when_they_are_large(tmp_path):
    handler = PrivateFileHandler(tmp_path / "a.log", maxBytes=FILE_BYTES, backupCount=2)
    logger = logging.Logger("alone")
    logger.addHandler(handler)
    for _ in range(4):
        logger.error("x" * (FILE_BYTES - 1000))
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_place_where_nothing_can_be_written_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"cannot log to .*: No such file"):
        set_up_logging("info", tmp_path / "none" / "a.log")


@pytest.mark.parametrize("by_the_journal", [True, False])
def test_the_journal_is_told_how_grave_each_line_is(tmp_path, by_the_journal):
    with (tmp_path / "stream").open("w+") as stream:
        status = os.fstat(stream.fileno())
        name = f"{status.st_dev}:{status.st_ino + (not by_the_journal)}"
        environment = {**os.environ, "JOURNAL_STREAM": name}
        subprocess.run([sys.executable, "-c", COMPLAIN], stderr=stream, env=environment, cwd=ROOT, check=True)
        stream.seek(0)
        said = stream.read()
    assert (said == "<4>one\n<4>two\n") is by_the_journal
    assert "WARNING one" in said or by_the_journal


@pytest.mark.parametrize("name", ["node", "daemon"])
def test_a_unit_starts_the_command_with_options_that_it_has(name):
    unit = (ROOT / "contrib" / f"tunnel-pool-{name}.service").read_text()
    (start,) = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    arguments = shlex.split(start.replace("${STATE_DIRECTORY}", "/var/lib/x"))[1:]
    parsed = make_parser(arguments).parse_args(arguments)
    assert parsed.command == name
    assert str(parsed.state) == "/var/lib/x"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def log():
    """Return a logger with the filter, its lines, and the clock in a list."""
    handler, now_s = Lines(), [0.0]
    handler.addFilter(RepeatFilter(handler, lambda: now_s[0]))
    logger = logging.Logger("alone")
    logger.addHandler(handler)
    return logger, handler.lines, now_s


def test_lines_that_repeat_are_told_once_a_minute_with_their_number(log):
    logger, lines, now_s = log
    for number in range(2746):
        now_s[0] = number * 180 / 2746
        logger.info("A tracker was not asked: no circuit %08x", 0x10000000 + number)
    assert len(lines) <= 3 * (LINES_OF_A_KIND + 1)
    now_s[0] = 300.0
    logger.info("something else")
    told = [int(line.split()[0]) for line in lines if "more lines like this" in line]
    written = sum(line.startswith("A tracker") for line in lines)
    assert sum(told) + written == 2746
    assert lines[-1] == "something else"


def test_lines_of_different_text_and_level_are_all_written(log):
    logger, lines, _ = log
    for name in ("abc", "def", "ghi", "jkl", "mno", "pqr", "stu"):
        logger.info("Torrent %s is whole", name)
        logger.warning("Torrent %s is whole", name)
    assert len(lines) == 14


def test_what_is_asked_for_by_debug_is_written(log):
    logger, lines, _ = log
    for _ in range(100):
        logger.debug("the same")
    assert len(lines) == 100


def test_kinds_are_bounded():
    repeats = Repeats()
    for number in range(10 * MAX_KINDS):
        assert repeats.may_write("a", 20, chr(0x4E00 + number), 0.0)
    assert len(repeats._windows) == MAX_KINDS
