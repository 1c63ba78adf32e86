"""Runs a Python program and meters it: bytes and calls between its components, or CPU of each.

python -m tunnel_pool.cut.meter flow|cpu COMPONENTS OUT [-m MODULE | SCRIPT] [ARGUMENT ...]

Flow: a profile function (sys.setprofile) sees every call and return of the main thread. Where a
component calls another, the bytes of its arguments count, and of what it gets back. CPU: a timer looks
at what the main thread does, and what that thread has used since the last look counts for it; threads
that Python did not start count for who owns them.
"""

import contextlib
import json
import runpy
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tunnel_pool.cut.components import Components, read_components
from tunnel_pool.system.errors import UserError

WORLD = ""
LOOK_S = 0.002
THREADS_EVERY = 100
OBJECT_BYTES = 4  # an object crosses the cut as a number that names it
ADDRESS_BYTES = 7  # an IPv4 address and port, RFC 1928 section 5
MAX_DEPTH = 4
FLOW, CPU = "flow", "cpu"


class Places:
    """Tells which component a piece of code belongs to."""

    def __init__(self, components: Components) -> None:
        named = [(code, name) for name, one in components.components.items() for code in one.code]
        self._named = sorted([*named, *((code, WORLD) for code in components.world)], key=lambda pair: -len(pair[0]))
        self._known: dict[CodeType, str | None] = {}

    def of(self, frame: FrameType) -> str | None:
        """Return the component of this code, None when it belongs to whoever calls it."""
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._find(str(frame.f_globals.get("__name__", "")), code.co_qualname)
        return self._known[code]

    def _find(self, module: str, qualified: str) -> str | None:
        for code, name in self._named:
            of_module, _, of_class = code.partition(":")
            if module == of_module and (not of_class or qualified.startswith(f"{of_class}.")):
                return name
            if not of_class and module.startswith(f"{of_module}."):
                return name
        return None

    def above(self, frame: FrameType | None) -> str:
        """Return the component of the nearest frame above that belongs to one."""
        while frame is not None:
            found = self.of(frame)
            if found is not None:
                return found
            frame = frame.f_back
        return WORLD


class FlowMeter:
    """Measures flows: `flows` has [bytes, calls] by pair of components, in the order of their names."""

    def __init__(self, components: Components) -> None:
        self.flows: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self._places = Places(components)
        self._outside = {name: one.outside for name, one in components.components.items()}
        self._messages = {tuple(name.split(":")) for name in components.messages}
        self._stack: list[str] = [WORLD]

    def start(self) -> None:
        sys.setprofile(self._seen)

    def stop(self) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "call":
            caller = self._stack[-1]
            found = self._places.of(frame)
            callee = caller if found is None else found
            self._stack.append(callee)
            if callee != caller:
                self._count(caller, callee, self._size_of_arguments(frame), 1)
        elif event == "return" and len(self._stack) > 1:
            callee = self._stack.pop()
            caller = self._stack[-1]
            if callee != caller and value is not None:
                self._count(caller, callee, self._size(value, 0), 0)

    def _count(self, caller: str, callee: str, size_bytes: int, calls: int) -> None:
        first = caller or self._outside.get(callee, "")
        second = callee or self._outside.get(caller, "")
        if first and second and first != second:
            flow = self.flows[min(first, second), max(first, second)]
            flow[0] += size_bytes
            flow[1] += calls

    def _size_of_arguments(self, frame: FrameType) -> int:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = frame.f_locals
        return sum(self._size(given[name], 0) for name in names if name not in ("self", "cls") and name in given)

    def _size(self, value: Any, depth: int) -> int:
        """Return how many bytes a message that carries this has at least."""
        if isinstance(value, bytes | bytearray | memoryview | str):
            return len(value)
        size = OBJECT_BYTES
        match value:
            case None | bool():
                size = 1
            case int():
                size = max(1, (value.bit_length() + 6) // 7)  # the bytes that protobuf's varint takes
            case float():
                size = 8
            case (str(), int()):
                size = ADDRESS_BYTES
            case tuple() | list() | set() | frozenset() if depth < MAX_DEPTH:
                size = sum(self._size(each, depth + 1) for each in value)
            case dict() if depth < MAX_DEPTH:
                size = sum(self._size(each, depth + 1) for item in value.items() for each in item)
            case _ if (type(value).__module__, type(value).__qualname__) in self._messages:
                size = sum(self._size(each, depth + 1) for each in vars(value).values())
        return size

    def result(self) -> dict[str, Any]:
        return {
            "flows": [
                {"first": first, "second": second, "bytes": size, "calls": calls}
                for (first, second), (size, calls) in sorted(self.flows.items())
            ]
        }


class CpuMeter:
    """Measures CPU seconds by component."""

    def __init__(self, components: Components) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(components.components, 0.0)
        self._places = Places(components)
        self._native = next((name for name, one in components.components.items() if one.native_threads), None)
        self._last_s = time.thread_time()
        self._looks = 0
        self._thread_s: dict[str, float] = {}  # CPU seconds of threads that Python did not start, by id

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._look_at_threads()
        if self._native is not None:
            self._seconds[self._native] += sum(self._thread_s.values())

    def _look_at_threads(self) -> None:
        """Note the CPU of other threads now: they may end before the program does."""
        pythons = {str(thread.native_id) for thread in threading.enumerate()}
        for path in Path("/proc/self/task").glob("*"):
            if path.name not in pythons:
                with contextlib.suppress(OSError, ValueError):  # the thread has just ended
                    self._thread_s[path.name] = int((path / "schedstat").read_text().split()[0]) / 1e9

    def _look(self, number: int, frame: FrameType | None) -> None:
        now_s = time.thread_time()
        place = self._places.above(frame)
        if place in self._seconds:
            self._seconds[place] += now_s - self._last_s
        self._last_s = now_s
        self._looks += 1
        if self._looks % THREADS_EVERY == 0:
            self._look_at_threads()

    def result(self) -> dict[str, Any]:
        return {"cpu_seconds": {name: round(seconds, 4) for name, seconds in self._seconds.items()}}


def main() -> int:
    if len(sys.argv) < 5 or sys.argv[1] not in (FLOW, CPU):
        print(__doc__, file=sys.stderr)
        return 2
    kind, components_path, out, *program = sys.argv[1:]
    try:
        components = read_components(Path(components_path))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    meter = FlowMeter(components) if kind == FLOW else CpuMeter(components)
    is_module = program[0] == "-m"
    name, arguments = (program[1], program[2:]) if is_module else (program[0], program[1:])
    sys.argv = [name, *arguments]
    begun_s = time.monotonic()
    meter.start()
    code: object = 0
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(name).resolve().parent))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    finally:
        meter.stop()
        Path(out).write_text(json.dumps({"seconds": time.monotonic() - begun_s, **meter.result()}))
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    sys.exit(main())
