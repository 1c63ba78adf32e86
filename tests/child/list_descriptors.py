"""Run in place of a child: tells which descriptors it was given, then waits for the end of its exit stream."""

import os

fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
given = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
print("descriptors", given, flush=True)
os.read(7, 1)
