"""Watches the event loop that a handler runs on, and reports which of its methods blocks it.

Purpose: a handler that blocks its loop blocks its other calls, and without a loop of its own the whole replica. A
thread probes the loop a few times a second with a callback, and reads the loop's stack if the callback does not run.
Invariants: a report has the stack of the loop's thread at that time; an idle loop does not count as blocked, even if
the machine is slow to run it. A block is reported while it lasts. Each method is logged at most every `LOG_GAP_S`, with
the number of blocks left out.
Owner: the replica, on the service's loop; methods below `close` run in the thread. `BlockReports.warning` and the
counters are read on the service's loop.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from replica_service.core.handler_health import Blocking, Look
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.telemetry import ReplicaCounters
from slotmesh.handlers import CALL
from slotmesh.logs import get_logger

MAX_FRAMES: Final = 32
"""Innermost frames of a stack that are reported."""
LOG_GAP_S: Final = 10.0
WARNS_FOR_S: Final = 600.0
"""How long the replica's report has a warning after the last block."""
MAX_STACK_CHARS: Final = 8_000
"""The length of a reported stack: its innermost part."""

_LOOPS: Final = frozenset({"asyncio.base_events", "asyncio.events", "asyncio.runners", HandlerLoop.__module__})
"""Modules whose frames run a loop: the frames below them are the callback."""
_IDLE: Final = _LOOPS | {"selectors"}
"""Modules of the innermost frame while the loop is idle."""

_log = get_logger(__name__)


class LoopWatch:
    """Watches one loop from its construction to `close`."""

    def __init__(
        self, handler_loop: HandlerLoop, methods: Iterable[HandlerMethod], reports: BlockReports, after_s: float
    ) -> None:
        """A loop that is blocked for longer than `after_s` is reported to `reports`."""
        self._loop = handler_loop.loop
        self._watched = handler_loop.thread
        self._codes = _codes_of(methods)
        self._reports = reports
        self._blocking = Blocking(after_s)
        self._answered_at: float | None = None
        """When the loop ran the last probe; None: not yet."""
        self._clock_id = _clock_id_of(self._watched)
        self._schedstat = Path(f"/proc/self/task/{self._watched.native_id}/schedstat")
        self._closed = threading.Event()
        threading.Thread(target=self._serve, name="loop-watch", daemon=True).start()

    def close(self) -> None:
        """Ends the reports."""
        self._closed.set()

    def _answer(self) -> None:
        """The probe; runs on the watched loop."""
        self._answered_at = time.monotonic()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        is_open = self._ask()
        while is_open and not self._closed.wait(self._blocking.interval_s):
            if self._answered_at is None:
                if self._loop.is_closed():
                    return  # it ended before the probe ran
                self._look_closely()
                continue
            kept_s = self._blocking.answered(self._look(self._answered_at))
            if kept_s is not None:
                self._reports.ended(kept_s)
            is_open = self._ask()

    def _ask(self) -> bool:
        """Sends a probe. Returns False if the loop has ended."""
        self._answered_at = None
        self._blocking.asked(self._look(time.monotonic()))
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return False
        return True

    def _look_closely(self) -> None:
        """Samples the thread while the probe has not run, and reports a block that is too long."""
        look = self._look(time.monotonic())
        frame = sys._current_frames().get(self._watched.ident or 0)
        if frame is None or _module_of(frame) in _IDLE:
            self._blocking.asked(look)
            return
        kept_s = self._blocking.silent(look)
        if kept_s is not None and self._answered_at is None:
            self._reports.began(*self._place_of(frame), kept_s)

    def _look(self, now: float) -> Look:
        return Look(now, self._cpu_s(), self._queued_s())

    def _cpu_s(self) -> float:
        try:
            return 0.0 if self._clock_id is None else time.clock_gettime(self._clock_id)
        except OSError:  # the thread has ended
            return 0.0

    def _queued_s(self) -> float:
        try:
            return int(self._schedstat.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # not Linux, or a kernel without it
            return 0.0

    def _place_of(self, innermost: FrameType) -> tuple[str, str]:
        """Returns the method that the loop executes, empty if it is in none, and the stack from there on."""
        frames: list[tuple[FrameType, int]] = []
        method, size = "", None
        for frame, line in traceback.walk_stack(innermost):
            if _module_of(frame) in _LOOPS:
                break
            frames.append((frame, line))
            if (found := self._codes.get(frame.f_code)) is not None:
                method, size = found, len(frames)
        shown = frames[:size][:MAX_FRAMES][::-1]
        return method, "".join(traceback.StackSummary.extract(iter(shown)).format())


def _codes_of(methods: Iterable[HandlerMethod]) -> Mapping[CodeType, str]:
    """Returns the methods' names by their code, and by the code of decorators that only one method has."""
    names: dict[CodeType, set[str]] = {}
    for method in methods:
        for layer in method.layers:
            called: Any = layer if hasattr(layer, "__code__") else type(layer).__call__
            code = getattr(called, "__code__", None)
            if isinstance(code, CodeType):
                names.setdefault(code, set()).add(method.name or CALL)
    return {code: found.pop() for code, found in names.items() if len(found) == 1}


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _clock_id_of(thread: threading.Thread) -> int | None:
    """Returns the id of the thread's processor time clock; None if there is no such clock."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return None
    return time.pthread_getcpuclockid(thread.ident)


class BlockReports:
    """Reports the blocks of one loop: in the log, the metrics and the replica's warning."""

    def __init__(self, counters: ReplicaCounters, now: Callable[[], float], *, own_loop: bool) -> None:
        """`own_loop`: only the handler's own calls are held up."""
        self._counters = counters
        self._now = now
        self._held_up = "the handler's other calls wait" if own_loop else "everything else in this replica waits"
        self._method = ""
        self._stack = ""
        self._since = ""
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}
        self._is_logged = False
        """Whether the current block was logged."""
        self._warning = ""
        self._warned_at = 0.0

    @property
    def warning(self) -> str:
        """The latest report, a line and a stack; empty if it is older than `WARNS_FOR_S`."""
        return self._warning if self._now() - self._warned_at < WARNS_FOR_S else ""

    def began(self, method: str, stack: str, kept_s: float) -> None:
        """Reports that a method, or other code if it is empty, has blocked the loop for too long and still does."""
        now = self._now()
        self._method, self._stack = method, stack[-MAX_STACK_CHARS:]
        self._since = datetime.now(UTC).strftime("%H:%M:%S UTC")
        self._counters.blocks += 1
        self._warn(f"{self._who} blocks the event loop since {self._since}; {self._held_up}")
        self._is_logged = now - self._logged_at.get(method, -LOG_GAP_S) >= LOG_GAP_S
        if not self._is_logged:
            self._left_out[method] = self._left_out.get(method, 0) + 1
            return
        self._logged_at[method] = now
        _log.warning(
            "the event loop is blocked",
            by=self._who,
            blocked_s=round(kept_s, 3),
            meanwhile=self._held_up,
            left_out_before=self._left_out.pop(method, 0),
            stack=self._stack,
        )

    def ended(self, kept_s: float) -> None:
        """Reports the end of a block and its duration."""
        self._counters.blocked_s += kept_s
        times = self._counters.blocks
        how_often = "" if times == 1 else f"; {times} times so far"
        self._warn(f"{self._who} blocked the event loop for {kept_s:.1f} s at {self._since}{how_often}")
        if self._is_logged:
            _log.warning("the event loop is no longer blocked", by=self._who, blocked_s=round(kept_s, 3))

    @property
    def _who(self) -> str:
        return self._method or "code outside of the handler's methods"

    def _warn(self, line: str) -> None:
        self._warned_at = self._now()
        self._warning = f"{line}\n{self._stack}"
