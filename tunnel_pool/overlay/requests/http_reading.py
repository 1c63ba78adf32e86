"""Reading a tracker's answer from its connection, to the end and no further."""

import asyncio

from tunnel_pool.overlay.requests.http_answers import AnswerReader

READ_BYTES = 16 << 10


async def read_response(reader: asyncio.StreamReader) -> AnswerReader:
    """Read a whole answer. Raises ValueError for one too large or cut short, OSError."""
    answer = AnswerReader()
    while not answer.is_whole:
        answer.feed(await reader.read(READ_BYTES))
        await asyncio.sleep(0)  # what has come is read without a pause
    return answer
