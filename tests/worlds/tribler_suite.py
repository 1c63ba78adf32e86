"""Runs Tribler's own unit tests of its tunnels on our class; the Python must have Tribler's requirements.

Prints one JSON object: how many tests ran, and of each that failed its name and the last line of its traceback.
"""

import json
import logging
import sys
import unittest

from tribler.core.notifier import Notification
from tribler.core.tunnel import community

from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.tribler.community import AdoptionOptions, adopt

PACKAGE = "tribler.test_unit.core.tunnel"


def main():
    logging.disable(logging.ERROR)
    options = AdoptionOptions(workers=WorkerRange(2, 2))
    community.TriblerTunnelCommunity = adopt(community.TriblerTunnelCommunity, options, Notification.circuit_removed)
    names = [f"{PACKAGE}.test_{name}" for name in ("community", "discovery", "payload")]
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(
        unittest.defaultTestLoader.loadTestsFromNames(names)
    )
    failed = {
        test.id().removeprefix(f"{PACKAGE}."): text.strip().splitlines()[-1]
        for test, text in [*result.failures, *result.errors]
    }
    print(json.dumps({"ran": result.testsRun, "failed": failed}))


if __name__ == "__main__":
    main()
