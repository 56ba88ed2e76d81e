"""Calls that wait for room in the client: maps with more calls than it may hold, and calls of lanes made by `send`.

Invariants: the iterables of a map are read no further than there is room for calls, but for one piece. A map's calls
are made in order; of a lane, calls made after a map, or after a call that waits, are made behind all of these: each has
its place in the line of the lane until it is made, with no moment between in which another could pass.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.gather import Gather
from slotmesh.client.calls.map_payloads import Piece
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.waiting_runs import WaitingRun
from slotmesh.errors import Failure
from slotmesh.status import to_exception

Add = Callable[[CallSpec, list[bytes], Gather, int], object]
"""Makes the calls of a map whose places are taken: the first one at a place of the gather."""


class LinePlace:
    """A place in the line of a lane."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once nothing is in front."""


class MapFeeds:
    """Those under way."""

    def __init__(self, endpoint: str, add: Add, closed: Failure) -> None:
        """`closed`: of the calls that were not made when the client is closed."""
        self._endpoint = endpoint
        self._add = add
        self._closed = closed
        self._lines: dict[CallQueue[WaitingRun], deque[LinePlace]] = {}
        """What waits in each queue, in order. No entry where nothing does."""
        self._tasks: set[asyncio.Task[None]] = set()

    def is_waiting(self, queue: CallQueue[WaitingRun]) -> bool:
        """Whether the queue's next call comes behind something that waits."""
        return queue in self._lines

    def join(self, queue: CallQueue[WaitingRun]) -> LinePlace:
        """The last place in the queue's line; `leave` it once its calls are made, or never will be."""
        place = LinePlace()
        line = self._lines.setdefault(queue, deque())
        line.append(place)
        if len(line) == 1:
            place.turn.set_result(None)
        return place

    def leave(self, queue: CallQueue[WaitingRun], place: LinePlace) -> None:
        """The next one in the line has its turn."""
        line = self._lines[queue]
        line.remove(place)
        if not line:
            del self._lines[queue]
        elif not line[0].turn.done():
            line[0].turn.set_result(None)

    def start(
        self, spec: CallSpec, share: BufferShare, payloads: list[bytes], rest: Iterator[Piece], gather: Gather
    ) -> None:
        """Makes calls with these payloads, and then with the rest. The gather is open, and is closed after the last."""
        place = self.join(spec.queue)
        feed = self._feed(spec, share, payloads, rest, gather, place)
        task = asyncio.get_running_loop().create_task(feed, name=f"slotmesh-client-map-{self._endpoint}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, spec.queue, place))
        gather.future.add_done_callback(lambda _: task.cancel())

    async def end(self, within_s: float) -> None:
        """Waits until all calls are made, at most so long; the rest fails."""
        feeds = set(self._tasks)
        if feeds:
            _, late = await asyncio.wait(feeds, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, queue: CallQueue[WaitingRun], place: LinePlace, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.leave(queue, place)

    async def _feed(
        self,
        spec: CallSpec,
        share: BufferShare,
        payloads: list[bytes],
        rest: Iterator[Piece],
        gather: Gather,
        place: LinePlace,
    ) -> None:
        error: Exception | None = to_exception(self._closed, endpoint=spec.endpoint, method=spec.method)
        try:
            await place.turn
            while payloads:
                await share.room(len(payloads[0]))
                count = 1
                while count < len(payloads) and share.take(1, len(payloads[count])):
                    count += 1
                self._add(spec, payloads[:count], gather, gather.extend(count))
                payloads = payloads[count:]
                if not payloads:
                    payloads, _ = next(rest, ([], 0))
            error = None
        except Exception as problem:  # noqa: BLE001 - of the application's iterables: it belongs to whoever waits
            error = problem
        finally:
            gather.close(error)
