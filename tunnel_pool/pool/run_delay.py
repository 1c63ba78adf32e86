"""How long a process has waited for a core: one that is starved can't answer, and is not dead (Linux)."""

import time
from pathlib import Path

RUNNABLE = "R"  # proc_pid_stat(5)


class RunDelay:
    """Measures from when it is made on, by the process's main thread; where the kernel does not say, it is 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since_s = time.monotonic()
        self._ran_s, self._waited_s, _ = _read(pid)

    def waited_s(self) -> float:
        """Return for how many seconds the process could have run and did not.

        The kernel counts a wait once it is over: of a process that waits now, all is a wait in which it did not run.
        """
        ran_s, waited_s, state = _read(self._pid)
        if state == RUNNABLE:
            return max(0.0, time.monotonic() - self._since_s - (ran_s - self._ran_s))
        return max(0.0, waited_s - self._waited_s)


def _read(pid: int) -> tuple[float, float, str]:
    """Return the seconds that a process has run and those that it has waited to, and its state; "" if unknown.

    The format is that of the kernel's Documentation/scheduler/sched-stats.rst, in nanoseconds.
    """
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        _, _, after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return int(ran_ns) / 1e9, int(waited_ns) / 1e9, after_name.split()[0]
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0, ""
