"""Speed tests of circuits, offered as ipv8-rust-tunnels' endpoint offers them (py-ipv8's REST API asks for that)."""

import asyncio
import logging
from collections.abc import Callable

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import CallError

GRACE_S = 15.0  # the last answers may take as long as their time-out

Statistics = dict[int, list[int]]
"""By request: milliseconds at which it was sent, its bytes, milliseconds at which it was answered, those bytes."""

logger = logging.getLogger(__name__)


class PooledEndpoint:
    """Offers what callers ask of a tunnel community's endpoint, as far as that needs the circuit itself."""

    def __init__(self, pool: ProcessPool, run: Callable[[str, asyncio.Future[None]], object]) -> None:
        """`run` keeps what it is given, by a name, until it is done (py-ipv8's register_anonymous_task)."""
        self._pool = pool
        self._run = run

    def run_speedtest(  # noqa: PLR0917
        self,
        circuit_id: int,
        test_time_ms: int,
        request_size: int,
        response_size: int,
        target_rtt_ms: int,
        callback: Callable[[Statistics, bool], object],
        callback_interval_ms: int,
    ) -> None:
        """Test a circuit in its child; `callback` hears all requests and True, once, when that is done.

        With the arguments of ipv8-rust-tunnels: the fifth is how many requests
        may be unanswered; the last is not needed, as there is one call.
        """
        message = pb.SpeedTest(
            circuit_id=circuit_id,
            milliseconds=test_time_ms,
            request_bytes=request_size,
            response_bytes=response_size,
            window=target_rtt_ms,
        )

        async def test() -> None:
            statistics: Statistics = {0: [0, 0, 0, 0]}  # py-ipv8's view can't do with none
            try:
                timeout_s = test_time_ms / 1000 + GRACE_S
                result = await self._pool.call(slot_of(circuit_id), "speed_test", message, timeout_s)
                columns = (result.sent_ms, result.sent_bytes, result.received_ms, result.received_bytes)
                statistics |= {number: list(row) for number, row in enumerate(zip(*columns, strict=True))}
            except (CallError, KeyError) as error:
                logger.warning("A speed test came to nothing: %s", error)
            callback(statistics, True)

        self._run("speed test", asyncio.ensure_future(test()))
