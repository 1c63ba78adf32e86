"""Where the program logs to, and how."""

import logging
import os
import shlex
import stat
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tunnel_pool.cli.main import make_parser
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.log import FILE_BYTES, PrivateFileHandler, set_up_logging

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
