"""Tests helpers of the experiments `beside_tor` and `fairness`: Jain's index, and configuration files for Tor."""

import subprocess

import pytest

from tunnel_pool.gumby_experiments.nodes import tor_network
from tunnel_pool.gumby_experiments.nodes.tor_network import Authority
from tunnel_pool.gumby_experiments.verbs.bulk import jain, why_not

AUTHORITIES = [Authority("a1", "10.99.0.2", "A" * 40, "B" * 40)]


def test_jains_index():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([1.0, 3.0]) == pytest.approx(0.8)


def test_the_identity_that_a_certificate_names():
    certificate = "dir-key-certificate-version 3\nfingerprint ABCD\ndir-key-published 2026-11-25 00:00:00\n"
    assert tor_network.identity_of(certificate) == "ABCD"


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    "lines",
    [
        tor_network.relay("relay1", "10.99.0.3"),
        tor_network.exit_relay("exit1", "10.99.0.4"),
        tor_network.client(AUTHORITIES),
    ],
)
def test_tor_takes_what_we_write(lines, tmp_path):
    torrc = tmp_path / "torrc"
    torrc.write_text("\n".join([*tor_network.common(tmp_path / "data", AUTHORITIES), *lines, ""]))
    command = ["tor", "--verify-config", "--defaults-torrc", "/dev/null", "-f", str(torrc)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout
