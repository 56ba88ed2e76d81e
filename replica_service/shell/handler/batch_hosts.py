"""The replica's side of `@batch` methods: changes of settings, the state of batches, and the stack of a running one.

Purpose: a handler may change the settings of its batch methods and read the state of their batches, from any thread.
Invariants: a change applies to the next batch that is cut, because the core reads the settings when it cuts;
`settings_changed` only ends waits under the old ones. A method that can never fill its batches is logged once for each
pair of numbers. A stack shows only the handler's frames: of a coroutine or generator from its outermost frame on, of a
thread those below the replica's own.
Owner: the engine, on its event loop; `batch_state` and `settings_changed` are called on any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from replica_service.core.calls.commands import StartBatch
from replica_service.core.state.batcher import Batcher
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.handlers import CALL, BatchControl, BatchState, RunningBatch
from slotmesh.logs import get_logger

MAX_FRAMES = 64
"""Outermost frames of a coroutine's awaits that are shown."""

_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")
_INNER: Final = ("cr_await", "gi_yieldfrom", "ag_await")

_OURS: Final = __name__.partition(".")[0]


def stack_of(runner: Any) -> str:
    """Returns the stack of a coroutine, a generator or the thread with this ident, formatted like a traceback.

    Empty if it has ended, or is of another type.
    """
    if isinstance(runner, int):
        frame = sys._current_frames().get(runner)  # documented, in spite of its name
        return "" if frame is None else "".join(traceback.format_list(_of_thread(frame)))
    frames: list[FrameType] = []
    while runner is not None and len(frames) < MAX_FRAMES:
        frame = _first(runner, _FRAMES)
        if frame is not None:
            frames.append(frame)
        runner = _first(runner, _INNER)
    summaries = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(summaries.format())


def _of_thread(frame: FrameType) -> traceback.StackSummary:
    """Below the last frame of the replica."""
    frames = list(traceback.walk_stack(frame))[::-1]
    ours = [index for index, (each, _) in enumerate(frames) if str(each.f_globals.get("__name__")).startswith(_OURS)]
    begin = ours[-1] + 1 if ours else 0
    return traceback.StackSummary.extract(iter(frames[begin:]))


def _first(runner: Any, names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := getattr(runner, name, None)) is not None), None)


_log = get_logger(__name__)


class BatchHosts:
    """All batch methods of a replica."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        batchers: Mapping[str, Batcher],
        now: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called on the running event loop after settings have changed."""
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._now = now
        self._batchers = batchers
        self._warned: set[tuple[str, int, int]] = set()
        self._controls: dict[str, BatchControl] = {}
        self._hosts: list[tuple[BatchControl, _Host]] = []
        for name, batcher in batchers.items():
            control = methods[name].control
            if control is not None:
                host = _Host(batcher, now, self._loop.is_running, self._changed)
                control.attach(host)
                self._controls[name] = control
                self._hosts.append((control, host))

    def warn_of_unfillable(self, max_ongoing: int, prefetch: int) -> None:
        """Warns of methods that can never fill a batch: their calls need a permit each."""
        for name, control in self._controls.items():
            size = control.max_batch_size
            if control.batch_size_fn is None and size > max_ongoing and (name, size, max_ongoing) not in self._warned:
                self._warned.add((name, size, max_ongoing))
                _log.warning(
                    "batches never fill: at most max_ongoing calls are in them, prefetch calls only wait behind; "
                    "raise max_ongoing, or lower max_batch_size",
                    method=name or CALL,
                    max_batch_size=size,
                    max_ongoing=max_ongoing,
                    prefetch=prefetch,
                )

    def oldest_s(self) -> float:
        """How long the oldest batch has run; 0 while none does."""
        began = [batch.began for batcher in self._batchers.values() for batch in list(batcher.running)]
        return max((self._now() - each for each in began if each is not None), default=0.0)

    def close(self) -> None:
        """The engine stops."""
        for control, host in self._hosts:
            control.detach(host)

    def _changed(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: no batch waits
            self._loop.call_soon_threadsafe(self._on_change)


class _Host:
    """One batch method in one replica."""

    def __init__(
        self,
        batcher: Batcher,
        now: Callable[[], float],
        is_alive: Callable[[], bool],
        settings_changed: Callable[[], None],
    ) -> None:
        self._batcher = batcher
        self._now = now
        self._is_alive = is_alive
        self.settings_changed = settings_changed

    def batch_state(self) -> BatchState:
        running = list(self._batcher.running)  # in one step: the loop may be about to change it
        return BatchState(
            is_alive=self._is_alive(),
            waiting=self._batcher.gathered.waiting,
            running=tuple(map(self._see, running)),
        )

    def _see(self, batch: StartBatch) -> RunningBatch:
        running_s = 0.0 if batch.began is None else max(self._now() - batch.began, 0.0)
        return RunningBatch(calls=batch.count, running_s=running_s, stack=stack_of(batch.runner))
