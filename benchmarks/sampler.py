"""A sampling profiler of one thread, without dependencies: a second thread looks at the first one's stack.

A sample weighs what the thread spent on the processor since the last one, so waiting counts for nothing; imports are
left out. Coarse: time in C goes to the Python function that called it, what gRPC does on the event loop to the loop's
own `run`. Cheap enough to leave the figures recognisable.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

_INTERVAL_S = 0.001
_SWITCH_INTERVAL_S = 0.0002
"""How soon the sampler gets the interpreter; by default it would wait until the sampled thread lets go by itself."""


class Sampler:
    """Counts in which function, and below which functions, a thread is seen."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._stop = threading.Event()
        self._clock = time.pthread_getcpuclockid(thread_id)
        self._inside: Counter[str] = Counter()
        self._below: Counter[str] = Counter()
        self._ns = 0
        self._switch_interval_s = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_interval_s)

    def report(self, title: str, lines: int = 30) -> str:
        """The functions with most of the time: `self` in them, `total` in them or below."""
        whole = self._ns or 1
        rows = [
            f"{ns / whole:6.1%}  {self._below[place] / whole:6.1%}  {place}"
            for place, ns in self._inside.most_common(lines)
        ]
        return "\n".join([f"\n{title}: {self._ns / 1e9:.2f} s on the processor", "  self   total  function", *rows, ""])

    def _run(self) -> None:
        before = time.clock_gettime_ns(self._clock)
        while not self._stop.wait(_INTERVAL_S):
            now = time.clock_gettime_ns(self._clock)
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None and now > before:
                self._count(frame, now - before)
            before = now

    def _count(self, innermost: FrameType, ns: int) -> None:
        places = set()
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return
            places.add(_place(frame))
            frame = frame.f_back
        self._ns += ns
        self._inside[_place(innermost)] += ns
        for place in places:
            self._below[place] += ns


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({'/'.join(code.co_filename.split('/')[-3:])}:{code.co_firstlineno})"
