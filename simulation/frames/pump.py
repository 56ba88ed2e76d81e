"""The writing half of a stream on virtual time: what `StreamPump` and `Pacer` do.

Invariants: one write at a time; a frame is cut when its write begins; one that is held back is looked at again when its
time has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from slotmesh.streams.pacing import QUICK, STEADY, Pacing, most_calls

if TYPE_CHECKING:
    from simulation.frames.machine import Process, Then
    from simulation.kernel import Kernel

_TICK_S = 0.001
"""Timers of event loops tick in milliseconds."""

FrameT = TypeVar("FrameT")


def _nothing() -> None:
    """What follows a look that found nothing."""


class Pump(Generic[FrameT]):
    """Writes frames of calls, or of their outcomes, one after another."""

    def __init__(
        self,
        kernel: Kernel,
        process: Process,
        waiting: Callable[[], tuple[int, int, bool]],
        cut: Callable[[int], tuple[FrameT, float]],
        send: Callable[[FrameT], None],
    ) -> None:
        """`waiting`: calls for the next frame, those under way beside them, and whether these are quick.

        `cut` takes a frame of at most so many calls, and says what writing it costs; `send` lets it go.
        """
        self._kernel = kernel
        self._process = process
        self._waiting = waiting
        self._cut = cut
        self._send = send
        self._pacing = Pacing()
        self._is_woken = False
        self._is_held = False
        self.frames = 0
        self.calls = 0

    def wake(self) -> None:
        """There is something to write."""
        if not self._is_woken:
            self._is_woken = True
            self._process.do(self._write)

    def _write(self) -> tuple[float, Then]:
        calls, under_way, are_quick = self._waiting()
        if not calls:
            self._is_woken = False
            return 0.0, _nothing
        pace, now = QUICK if are_quick else STEADY, self._kernel.now
        if wait_s := self._pacing.wait_s(calls, under_way, now, pace):
            self._is_woken = False
            if not self._is_held:
                self._is_held = True
                self._kernel.at(now + max(wait_s, _TICK_S), self._look_again, None)
            return 0.0, _nothing
        self._pacing.left(now, pace)
        before = calls
        frame, cost_s = self._cut(most_calls(calls, under_way))
        self.frames += 1
        self.calls += before - self._waiting()[0]
        return cost_s, lambda: self._written(frame)

    def _written(self, frame: FrameT) -> None:
        self._send(frame)
        self._process.do(self._write)

    def _look_again(self, _: None) -> None:
        self._is_held = False
        self.wake()
