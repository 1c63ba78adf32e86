"""Measures a circuit's speed by test requests to its end, a window of them at a time (py-ipv8's send_test_request)."""

import asyncio
from typing import NamedTuple

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit

from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.serving.serving import MAX_TEST_BYTES

MAX_SECONDS = 60.0
MAX_WINDOW = 1000
MAX_SAMPLES = 100_000
ANSWER_TIMEOUT_S = 5.0


class Sample(NamedTuple):
    """One request; times in milliseconds since the test began. Without an answer the last two are 0."""

    sent_ms: int
    sent_bytes: int
    received_ms: int
    received_bytes: int


async def run_speed_test(
    community: LocalTunnelCommunity, circuit: Circuit, seconds: float, sizes: tuple[int, int], window: int
) -> list[Sample]:
    """`sizes`: bytes of a request and of its answer. Ends early with the circuit. Raises ValueError."""
    request_bytes, response_bytes = sizes
    if not (
        0 < seconds <= MAX_SECONDS and 0 < window <= MAX_WINDOW and max(sizes) <= MAX_TEST_BYTES and min(sizes) >= 0
    ):
        raise ValueError(
            f"a speed test takes up to {MAX_SECONDS:.0f} s, {MAX_TEST_BYTES} bytes, a window of {MAX_WINDOW}"
        )
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    samples: list[Sample] = []

    async def keep_asking() -> None:
        while loop.time() - start_s < seconds and circuit.state == CIRCUIT_STATE_READY and len(samples) < MAX_SAMPLES:
            sent_ms = _since(start_s)
            received_ms = received_bytes = 0
            try:
                answer = community.send_test_request(circuit, request_bytes, response_bytes)
                received_bytes = len((await asyncio.wait_for(answer, ANSWER_TIMEOUT_S))[0])
                received_ms = max(1, _since(start_s))
            except (TimeoutError, asyncio.CancelledError):
                if community.circuits.get(circuit.circuit_id) is None:
                    return
            samples.append(Sample(sent_ms, request_bytes, received_ms, received_bytes))

    await asyncio.gather(*(keep_asking() for _ in range(window)))
    return samples


def _since(start_s: float) -> int:
    return round((asyncio.get_running_loop().time() - start_s) * 1000)
