"""Measures how long downloads stand still, by the uploads of their seeders."""

import asyncio
import time

WATCHED_S = 30.0


async def longest_stands(handles):
    """Return the longest time that the seeder of each torrent sent nothing, sorted, in seconds."""
    began_s = time.monotonic()
    sent, moved_s, stood_s = [0] * len(handles), [began_s] * len(handles), [0.0] * len(handles)
    while (now_s := time.monotonic()) < began_s + WATCHED_S:
        for number, handle in enumerate(handles):
            stood_s[number] = max(stood_s[number], now_s - moved_s[number])
            if (bytes_now := handle.status().total_payload_upload) != sent[number]:
                sent[number], moved_s[number] = bytes_now, now_s
        await asyncio.sleep(0.05)
    return sorted(round(seconds, 1) for seconds in stood_s)
