"""Where a handler is in its code, as a traceback prints it.

Purpose: shows what a handler is doing or waiting for, from outside, without disturbing it.
Invariant: of a coroutine or generator only what is the handler's is shown, from its outermost frame on; of a thread all
below the replica's own frames.
"""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Any, Final

MAX_FRAMES = 64
"""Outermost ones, of a coroutine's awaits: recursion may go deep."""

_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")
_INNER: Final = ("cr_await", "gi_yieldfrom", "ag_await")

_OURS: Final = __name__.partition(".")[0]


def stack_of(runner: Any) -> str:
    """The stack of a coroutine, of a generator of either kind, or of the thread with this ident.

    Empty where there is none to be seen: it has ended, or it is something else.
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
