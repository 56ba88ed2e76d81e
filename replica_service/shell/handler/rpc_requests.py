"""Requests of client-streaming rpcs, between one router's stream and the handler.

Purpose: a handler takes requests one by one, on any loop or thread. The router receives an acknowledgement when the
handler begins and for the requests it has taken, which bounds what is buffered here.
Invariants: at most the credit that the router was given is buffered per call. A cancelled call, or one whose router has
disconnected, wakes its waiting handler on any thread. Requests for a call that has ended are dropped.
Owner: the router's stream, on the engine's event loop; a `RequestStream` is read where the handler runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from replica_service.shell.handler.methods import BadCall
from slotmesh.calls.id_ranges import among
from slotmesh.calls.result_envelopes import MAX_REQUEST_BYTES_AHEAD, MAX_REQUESTS_AHEAD
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.tasks import call_here_or_on, set_once
from slotmesh.status import to_exception
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2

ACKNOWLEDGED_AT: Final = MAX_REQUESTS_AHEAD // 2
"""Requests taken by a handler before they are acknowledged to the router."""
ACKNOWLEDGED_AT_BYTES: Final = MAX_REQUEST_BYTES_AHEAD // 2
"""The same as a number of bytes; whichever is reached first."""


class RequestsLost(BadCall):
    """No caller waits for the call any more, so no requests follow. Not an error of the handler: it is not logged."""

    def __init__(self) -> None:
        super().__init__(_LOST)


class RequestStream:
    """The requests of one call."""

    __slots__ = (
        "_acknowledge",
        "_bytes",
        "_count",
        "_is_lost",
        "_lock",
        "_loop",
        "_part",
        "_ready",
        "_waiter",
        "is_last",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, acknowledge: Callable[[int], None]) -> None:
        """`acknowledge` is called on `loop`, the engine's, with the number of requests taken since the last call."""
        self._loop = loop
        self._acknowledge = acknowledge
        self._lock = threading.Lock()
        self._ready: deque[bytes] = deque()
        self._part: list[bytes] = []
        """The parts so far of an incomplete request."""
        self.is_last = False
        """The client has half-closed."""
        self._is_lost = False
        self._waiter: Callable[[], object] | None = None
        """Wakes the handler if it waits."""
        self._count = self._bytes = 0
        """Taken but not yet acknowledged."""

    # -- on the engine's loop ----------------------------------------------------------------------------------------

    def feed(self, payloads: Iterable[bytes], *, is_cut: bool, is_last: bool) -> None:
        """Adds requests that arrived. Raises BadRequest if one exceeds the size limit."""
        given = list(payloads)
        if given and self._part:
            self._part.append(given[0])
            given[0] = b"".join(self._part)
            self._part = []
        if is_cut and given:
            self._part = [given.pop()]
            if len(self._part[0]) > MAX_INLINE_BYTES:
                raise to_exception(_TOO_LARGE)
        with self._lock:
            self._ready.extend(given)
            self.is_last = self.is_last or is_last
        self._wake()

    def lose(self) -> None:
        """Ends the stream: no caller waits for the call any more."""
        with self._lock:
            self._is_lost = True
            self._ready.clear()
        self._part.clear()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter()

    # -- where the handler runs --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Reports to the router that the handler has begun, so that it sends requests."""
        call_here_or_on(self._loop, self._acknowledge, 0)

    def take_now(self) -> bytes | None:
        """Returns the next request; None if it has not arrived or none follows (`has_ended`). Raises RequestsLost."""
        with self._lock:
            if self._is_lost:
                raise RequestsLost
            if not self._ready:
                return None
            request = self._ready.popleft()
        self._count += 1
        self._bytes += len(request)
        if self._count >= ACKNOWLEDGED_AT or self._bytes >= ACKNOWLEDGED_AT_BYTES:
            count, self._count, self._bytes = self._count, 0, 0
            call_here_or_on(self._loop, self._acknowledge, count)
        return request

    @property
    def has_ended(self) -> bool:
        """All have been taken, and the client has half-closed."""
        with self._lock:
            return self.is_last and not self._ready and not self._is_lost

    async def take(self) -> bytes | None:
        """Waits for the next request and returns it; None at the end. Raises RequestsLost."""
        loop = asyncio.get_running_loop()
        while (request := self.take_now()) is None:
            if self.has_ended:
                return None
            arrived: asyncio.Future[None] = loop.create_future()
            if self._waits(partial(call_here_or_on, loop, set_once, arrived, None)):
                await arrived
        return request

    def take_in_thread(self) -> bytes | None:
        """Like `take`, blocking the current thread."""
        while (request := self.take_now()) is None:
            if self.has_ended:
                return None
            arrived = threading.Event()
            if self._waits(arrived.set):
                arrived.wait()
        return request

    def _waits(self, wake: Callable[[], object]) -> bool:
        """Returns whether the caller has to wait; if so, `wake` is called when the state changes."""
        with self._lock:
            if self._ready or self.is_last or self._is_lost:
                return False
            self._waiter = wake
            return True


class RouterRequests:
    """The request streams of one router's client-streaming calls."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake` is called when `taken` has something to send."""
        self._wake = wake
        self._taken: dict[int, int] = {}
        """Requests taken by handlers and not yet acknowledged, by run id."""
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, RequestStream] = {}
        """By run id, of calls that have not ended. Handlers look theirs up, on any thread."""

    def expect(self, first: int, count: int) -> None:
        """Adds streams for `count` calls from run id `first`."""
        for run_id in range(first, first + count):
            self._streams[run_id] = RequestStream(self._loop, self._acknowledger(run_id))

    def of(self, run_id: int) -> RequestStream | None:
        """Returns the requests of a call; None if it has ended."""
        return self._streams.get(run_id)

    def taken(self) -> call_pb2.TakeItems | None:
        """Returns the acknowledgements to send, and forgets them; None if there are none."""
        if not self._taken:
            return None
        taken, self._taken = self._taken, {}
        return call_pb2.TakeItems(call_ids=taken.keys(), counts=taken.values())

    def add(self, frame: replica_service_pb2.RequestItems) -> None:
        """Passes the requests of a frame to their calls. Raises BadRequest."""
        for batch in frame.batches:
            if (stream := self._streams.get(batch.run_id)) is not None:
                stream.feed(batch.payloads, is_cut=batch.is_cut, is_last=batch.is_last)

    def cancel(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ends the streams of cancelled calls, given as ranges of run ids, both ends included."""
        if self._streams:
            for first, last in ranges:
                for run_id in list(among(self._streams, first, last)):
                    self._streams[run_id].lose()

    def ended(self, first: int, count: int) -> None:
        """Removes `count` calls from run id `first`, which have their outcome."""
        for run_id in range(first, first + count):
            if (stream := self._streams.pop(run_id, None)) is not None:
                stream.lose()

    def close(self) -> None:
        """Ends all streams: the router has disconnected."""
        for stream in self._streams.values():
            stream.lose()

    def _acknowledger(self, run_id: int) -> Callable[[int], None]:
        def acknowledge(count: int) -> None:
            if run_id in self._streams:
                self._taken[run_id] = self._taken.get(run_id, 0) + count
                self._wake()

        return acknowledge


_LOST: Final = Failure(
    reason=Reason.CANCELLED, message="no caller waits for this call any more", executed=Executed.UNKNOWN
)
_TOO_LARGE: Any = Failure(
    reason=Reason.BAD_REQUEST,
    message=f"requests.batches.payloads: a request has at most {MAX_INLINE_BYTES} bytes",
    metadata={"field": "requests.batches.payloads"},
)
