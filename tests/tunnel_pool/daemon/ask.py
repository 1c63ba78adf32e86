"""Sends one request to a daemon from the namespace that it runs in: ask.py ADDRESS METHOD PARAMETERS."""

import asyncio
import json
import sys

from tests.tunnel_pool.daemon.rpc import Rpc


async def ask(address, method, parameters):
    async with Rpc(address) as rpc:
        return await rpc.call(method, json.loads(parameters))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(*sys.argv[1:]))))
