"""Opens sockets that share one port; skips the test if this system cannot steer among them."""

from contextlib import contextmanager

import pytest

from tunnel_pool.steering.group import ReusePortGroup, SteeringError

LOOPBACK = "127.0.0.1"


@contextmanager
def reuse_port_group(slots):
    try:
        group = ReusePortGroup(LOOPBACK)
    except SteeringError as error:
        pytest.skip(str(error))
    for _ in range(slots):
        group.add()
    yield group
    group.close()
