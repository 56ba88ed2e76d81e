"""The queues with calls that wait to be sent, served in turn.

Purpose: decides which calls the next frame takes. Pure.
Invariants: nothing overtakes within a queue. Queues take turns, so that a map of a million calls does not keep a single
call waiting. A call whose future is done (somebody cancelled it) does not leave at all.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate

from slotmesh.client.gather import Gather
from slotmesh.client.runs import CallQueue, Part, WaitingRun
from slotmesh.client.spec import CallSpec

FRAME_CALLS = 8_192
"""Calls of one frame at most."""

FRAME_BYTES = 1024 * 1024
"""Payload bytes of one frame at most, unless one call alone has more."""

TURN_CALLS = 1_024
"""Calls that a queue may put into a frame at a time while another one waits."""


class Outbox:
    """What waits to be sent. True while something does."""

    __slots__ = ("_rota",)

    def __init__(self) -> None:
        self._rota: deque[CallQueue] = deque()

    def __bool__(self) -> bool:
        return bool(self._rota)

    @property
    def first_spec(self) -> CallSpec:
        """The spec of what leaves first. Only while something waits."""
        return self._rota[0].runs[0].spec

    def open_run(self, spec: CallSpec) -> WaitingRun:
        """A new run at the end of the spec's queue, open for calls: the caller appends one at once."""
        run = WaitingRun(spec, [], [])
        self._append(run)
        spec.queue.tail = run
        return run

    def add_map(self, spec: CallSpec, payloads: list[bytes], gather: Gather, offset: int) -> None:
        """Calls whose outcomes `gather` takes, the first one at `offset`."""
        self._append(WaitingRun(spec, payloads, [], gather, offset))
        spec.queue.tail = None

    def take(self, calls: int, nbytes: int, *, alone: bool) -> list[Part]:
        """Takes the parts of the next frame.

        At most `calls` calls of `nbytes` bytes, which is what the window has left. `alone`: nothing is unanswered, so
        that one call may have more bytes than the window.
        """
        parts: list[Part] = []
        rota, room = self._rota, FRAME_BYTES
        calls = min(calls, FRAME_CALLS)
        while rota and calls > 0:
            queue = rota[0]
            run = queue.runs[0]
            sizes = run.sizes(min(calls, TURN_CALLS) if len(rota) > 1 else calls)
            if sizes:
                total, limit = sum(sizes), min(nbytes, room)
                if total > limit:
                    fitting = bisect_right(list(accumulate(sizes)), limit)
                    if not fitting and (parts or (sizes[0] > nbytes and not alone)):
                        break
                    del sizes[max(fitting, 1) :]
                    total = sum(sizes)
                parts.append(run.split(len(sizes), total))
                queue.sent(len(sizes))
                calls, nbytes, room = calls - len(sizes), nbytes - total, room - total
            if queue.tail is run:
                queue.tail = None
            self._next_turn(queue, run)
        return parts

    def drain(self) -> Iterator[Part]:
        """Takes everything, never to be sent."""
        while self._rota:
            queue = self._rota[0]
            run = queue.runs[0]
            queue.tail = None
            if sizes := run.sizes(len(run)):
                part = run.split(len(sizes), sum(sizes))
                queue.sent(part.count)
                yield part
            self._next_turn(queue, run)

    def _append(self, run: WaitingRun) -> None:
        queue = run.spec.queue
        if not queue.runs:
            self._rota.append(queue)
        queue.runs.append(run)

    def _next_turn(self, queue: CallQueue, run: WaitingRun) -> None:
        self._rota.popleft()
        if not run:
            queue.runs.popleft()
        if queue.runs:
            self._rota.append(queue)
        else:
            queue.tell_if_idle()
