"""Runs a real child whose heartbeat blocks its loop for good."""

import sys
import time

from tunnel_pool.child.__main__ import main
from tunnel_pool.child.host import ChildHost


async def block(self, message):
    print("blocked", flush=True)
    while True:
        time.sleep(0.01)


ChildHost._on_heartbeat = block
sys.exit(main())
