"""Maps that have more calls than the client may hold: their calls are made as others leave.

Invariants: the iterables of a map are read no further than there is room for calls, but for one piece. A map's calls
are made in order; of a lane, calls made after a map are made behind all of its calls.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio
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


class MapFeeds:
    """Those under way."""

    def __init__(self, endpoint: str, add: Add, closed: Failure) -> None:
        """`closed`: of the calls that were not made when the client is closed."""
        self._endpoint = endpoint
        self._add = add
        self._closed = closed
        self._feeds: dict[CallQueue[WaitingRun], asyncio.Task[None]] = {}
        """By queue, the last one."""

    def of(self, queue: CallQueue[WaitingRun]) -> asyncio.Task[None] | None:
        """The one behind which the queue's next call comes."""
        return self._feeds.get(queue)

    def start(
        self, spec: CallSpec, share: BufferShare, payloads: list[bytes], rest: Iterator[Piece], gather: Gather
    ) -> None:
        """Makes calls with these payloads, and then with the rest. The gather is open, and is closed after the last."""
        feed = self._feed(spec, share, payloads, rest, gather, self._feeds.get(spec.queue))
        task = asyncio.get_running_loop().create_task(feed, name=f"slotmesh-client-map-{self._endpoint}")
        self._feeds[spec.queue] = task
        task.add_done_callback(partial(self._ended, spec.queue))
        gather.future.add_done_callback(lambda _: task.cancel())

    async def end(self, within_s: float) -> None:
        """Waits until all calls are made, at most so long; the rest fails."""
        feeds = set(self._feeds.values())
        if feeds:
            _, late = await asyncio.wait(feeds, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, queue: CallQueue[WaitingRun], task: asyncio.Task[None]) -> None:
        if self._feeds.get(queue) is task:
            del self._feeds[queue]

    async def _feed(
        self,
        spec: CallSpec,
        share: BufferShare,
        payloads: list[bytes],
        rest: Iterator[Piece],
        gather: Gather,
        before: asyncio.Task[None] | None,
    ) -> None:
        error: Exception | None = to_exception(self._closed, endpoint=spec.endpoint, method=spec.method)
        try:
            if before is not None:
                await asyncio.wait((before,))
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
