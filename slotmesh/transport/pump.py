"""The writing half of every stream in the mesh: one write in progress; what accumulates meanwhile is the next frame.

Purpose: coalescing by back-pressure. A pump waits only for the transport; the code that builds its frames may hold a
small one back (`Pacer`). Writes have no task of their own, which would have to be woken for each: a pump writes at the
end of the work that has woken it (`WokenPumps`), and continues when the transport reports that a write is done.
Invariants: at most one write is in progress; frames leave in the order in which they are built; a frame is built at the
last moment, when the transport can take it; nothing is built while the code that wakes a pump is running. A pump that
has ended references nothing of its stream.
Owner: the caller of `start`; everything is called on the same event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Final, Generic, TypeVar

from slotmesh.streams.pacing import QUICK, STEADY, Gathering, Pacing


def call_when_done(waits_for: Any, callback: Callable[[object], None], context: Context) -> Any:
    """Does what a task does with the object that its coroutine waits for: None is a turn of the loop, else a future.

    Continues a coroutine without a task. Returns what can be cancelled: the future, or the handle of the callback.
    """
    if waits_for is None:
        return asyncio.get_running_loop().call_soon(callback, None, context=context)
    waits_for._asyncio_future_blocking = False
    waits_for.add_done_callback(callback, context=context)
    return waits_for


FrameT = TypeVar("FrameT")


class WokenPumps:
    """Pumps that have something to write, and write at the end of the piece of work that has woken them.

    The code that does such a piece of work sets `is_at_work`, and calls `write` at its end, with no await in between.
    All other work ends with the turn of the event loop. So it does for a pump that held its frame back when it was
    woken last: it waits for more to come, and checks once a turn.
    """

    __slots__ = ("_later", "is_at_work", "ready")

    def __init__(self) -> None:
        self.ready: list[StreamPump[Any]] = []
        """They write when the work ends."""
        self._later: list[StreamPump[Any]] = []
        self.is_at_work = False
        """`write` will be called before the event loop continues."""

    def add_later(self, pump: StreamPump[Any]) -> None:
        """Registers a pump to write in the next turn of the event loop."""
        self._later.append(pump)
        if len(self._later) == 1:
            asyncio.get_running_loop().call_soon(self._write_later)

    def write(self) -> None:
        """Lets all registered pumps write until their transports block. Never raises."""
        self.is_at_work = False
        while self.ready:
            pumps, self.ready = self.ready, []
            for pump in pumps:
                pump.go_on(is_woken=True)

    def _write_later(self) -> None:
        pumps, self._later = self._later, []
        for pump in pumps:
            pump.go_on(is_woken=True)


def _nothing() -> None:
    """The `next_frame` of a pump that has ended."""


async def _nowhere(_frame: object) -> None:
    """The `write` of a pump that has ended."""


class StreamPump(Generic[FrameT]):
    """Writes the frames of `next_frame` until it returns None, then sleeps until it is woken."""

    def __init__(
        self,
        write: Callable[[FrameT], Coroutine[Any, Any, object]],
        next_frame: Callable[[], FrameT | None],
        woken: WokenPumps | None = None,
    ) -> None:
        """`next_frame` builds the next frame of all that is pending, or returns None if nothing is.

        `write` must not depend on the task in which it runs. `woken`: the pumps that this one writes together with.
        """
        self._write = write
        self._next_frame = next_frame
        self._woken = woken or WokenPumps()
        self._context = copy_context()
        self._ended: asyncio.Future[None] | None = None
        self._writing: Any = None
        """The newest write."""
        self._waits_for: Any = None
        """What the write waits for; None if none is in progress."""
        self._is_awake = True
        """It will look for frames, by itself or as one of the woken pumps; also until it is started."""
        self._is_due = True
        """It was woken since it has looked last."""
        self._has_held_back = False
        """When it was woken last, there was nothing to write yet."""
        self._is_closed = False
        self._is_stopped = False

    def wake(self) -> None:
        """Something is pending. Cheap, and idempotent until the pump has looked."""
        self._is_due = True
        if not self._is_awake:
            self._is_awake = True
            woken = self._woken
            if woken.is_at_work and not self._has_held_back:
                woken.ready.append(self)
            else:
                woken.add_later(self)

    def close(self) -> None:
        """Ends the pump once all that is pending was written."""
        self._is_closed = True
        self.wake()

    def stop(self) -> None:
        """Ends the pump when the current write has ended."""
        self._is_stopped = True
        if self._is_awake:
            self.wake()
        else:
            self._end(None)

    def start(self) -> asyncio.Future[None]:
        """Starts pumping. The future is done when the pump has ended, with the error of `write` or `next_frame`.

        Cancelling it ends the pump, and its current write, in the next turn of the loop.
        """
        self._ended = ended = asyncio.get_running_loop().create_future()
        ended.add_done_callback(self._let_go)
        self.go_on()
        return ended

    def go_on(self, *, is_woken: bool = False) -> None:
        """Writes until the transport blocks, and again when it is ready. `is_woken`: it was asleep."""
        if is_woken:
            self._has_held_back = True  # until there is a frame
        try:
            while not self._is_stopped:
                self._is_due = False
                frame = self._next_frame()
                if frame is not None:
                    self._has_held_back = False
                    self._writing = writing = self._write(frame)
                    del frame  # or a peer that does not read would keep it in memory
                    try:
                        waits_for = writing.send(None)
                    except StopIteration:
                        continue
                    self._waits_for = call_when_done(waits_for, self._transport_ready, self._context)
                    return
                if not self._is_due:
                    if self._is_closed:
                        break
                    self._is_awake = False
                    return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the future has it
            self._end(error)
        else:
            self._end(None)

    def _transport_ready(self, _: object) -> None:
        """Continues the current write, which usually ends now."""
        self._waits_for = None
        try:
            waits_for = self._writing.send(None)
        except StopIteration:
            self.go_on()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the future has it
            self._end(error)
        else:
            self._waits_for = call_when_done(waits_for, self._transport_ready, self._context)

    def _let_go(self, _: object) -> None:
        """Drops references after the end: kilobytes that would wait for the garbage collector."""
        self._is_stopped = True
        if self._waits_for is not None:
            self._waits_for.cancel()
        self._next_frame, self._write = _nothing, _nowhere

    def _end(self, error: BaseException | None) -> None:
        self._is_stopped = True
        ended = self._ended
        if ended is None or ended.done():
            return
        if error is None:
            ended.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            ended.cancel()
        else:
            ended.set_exception(error)


_TICK_S: Final = 0.001
"""The event loop's timers tick in milliseconds."""


class Pacer:
    """Holds small frames back for a moment: the rules of `slotmesh.streams.pacing`, with a clock and a timer.

    Consulted before each frame of calls, or of their outcomes, and informed when one was built.
    Invariants: a writer that holds a frame back is woken when its time has come; there is one timer a stream.
    Owner: the writing half of a stream, on its event loop.
    """

    __slots__ = ("_gathering", "_hurries", "_now", "_pace", "_pacing", "_timer", "_wake")

    def __init__(self, wake: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
        """`wake` is called when a frame that was held back should be reconsidered. `now`: monotonic seconds."""
        self._wake = wake
        self._now = now
        self._pacing = Pacing()
        self._gathering = Gathering()
        self._pace = STEADY
        self._timer: asyncio.TimerHandle | None = None
        self._hurries = False

    def holds(self, calls: int, unanswered: int, *, are_quick: bool) -> bool:
        """Whether a frame of this number of calls has to wait for others; `wake` is called when to ask again.

        `unanswered`: other calls that are about to be answered. `are_quick`: they are known to take little time.
        """
        self._pace = QUICK if are_quick else STEADY
        if self._hurries:
            return False
        wait_s = self._pacing.wait_s(calls, unanswered, self._now(), self._pace)
        if wait_s and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _TICK_S), self._look_again)
        return wait_s > 0.0

    def gathers(self, calls: int) -> bool:
        """Whether a frame of this number of calls, which `holds` lets leave, waits for calls that are about to join it.

        Then `wake` is called in the next turn of the event loop.
        """
        gathering = self._gathering
        if self._hurries or not gathering.left_to_meet or not gathering.waits(calls, self._now()):
            return False
        asyncio.get_running_loop().call_soon(self._wake)
        return True

    def left(self) -> None:
        """The frame of the last call of `holds` was built, and leaves."""
        self._pacing.left(self._now(), self._pace)

    def gathered(self, calls: int, *, is_alone: bool) -> None:
        """The frame of the last call of `gathers` was built, with this number of calls, and leaves.

        `is_alone`: nothing else was unanswered.
        """
        if self._gathering.left_to_meet or calls > 1 or not is_alone:
            self._gathering.left(calls, is_alone=is_alone)

    def hurry(self) -> None:
        """Holds nothing back any more: the stream is about to end."""
        self._hurries = True
        if self._timer is not None:
            self.stop()
            self._wake()

    def stop(self) -> None:
        """Stops the timer: no writer is woken any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = None
        self._wake()
