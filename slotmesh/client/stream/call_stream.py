"""All calls of one endpoint: made here, sent over one connection.

Purpose: takes calls without waiting, sends them, and returns futures.
Invariants: every future gets its outcome. The connection is served by one task, while there is something to do. After
the mesh was closed, no task of the endpoint is left.
Owner: the `Mesh`; all views of an endpoint share one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol, cast
from weakref import WeakSet, WeakValueDictionary

from slotmesh.client.calls.buffer import BufferShare, BufferShares, ClientBuffer
from slotmesh.client.calls.call_spec import CallSpec, too_large
from slotmesh.client.calls.maps import Gather, MapFeeds, Piece, first_pieces
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.queues import CallQueue, LaneGroups, LaneStop, StopGenerations
from slotmesh.client.calls.sent_parts import SentPart, fail, refuse
from slotmesh.client.calls.values import RpcValues
from slotmesh.client.calls.waiting_runs import WaitingRun
from slotmesh.client.routers import Routers
from slotmesh.client.search import RouterChoice
from slotmesh.client.stream.reconnecting import Connection
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.v1 import router_service_pb2_grpc

LOOK_S: Final = 0.05
"""Between two checks whether a caller waits for a call: a cancelled future notifies no one."""

IDLE_GRACE_S: Final = 1.0
"""How long the orderly end of streams may take if no caller waits for their calls."""

LAST_WORDS_S: Final = 0.2
"""How long a router may take to read the cancels of all unanswered calls."""

Tasks = Callable[[], set[asyncio.Task[None]]]
"""All tasks that have calls in progress."""


async def end_streams(connection: Connection, tasks: Tasks, until: float, closed: Failure) -> None:
    """Waits for the calls that a caller waits for, until the end of the grace; then the others fail.

    Cancelled calls are not waited for, whether they were sent or not. Returns once all tasks have ended. `until`: the
    end of the grace, seconds of the event loop's clock.
    """
    if not tasks():
        return
    connection.finish()
    if not await _finished(connection, tasks, until):
        connection.abandon(closed)
        await _have_ended(tasks, LAST_WORDS_S)
    left = tasks()
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _finished(connection: Connection, tasks: Tasks, until: float) -> bool:
    """Waits for all tasks while a caller waits for a call, and a moment longer for streams to end."""
    loop = asyncio.get_running_loop()
    while tasks() and (left_s := until - loop.time()) > 0:
        if not connection.has_wanted:
            if not connection.is_open:
                return False
            connection.finish()
            until = min(until, loop.time() + IDLE_GRACE_S)
        await _have_ended(tasks, min(left_s, LOOK_S))
    return not tasks()


async def _have_ended(tasks: Tasks, within_s: float) -> None:
    """Waits for all tasks, including those that start meanwhile because a router leaves."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while running := tasks():
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was answered")

log = logging.getLogger(__name__)


class CallSink(Protocol):
    """Takes a call's outcome, once. An asyncio future does; another sink must be as quick."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def exception(self) -> BaseException | None: ...


class CallStream:
    """Takes calls, returns futures."""

    def __init__(
        self,
        endpoint: str,
        routers: Routers,
        connect_timeout_s: float,
        *,
        names_executors: bool = False,
        buffer: ClientBuffer | None = None,
    ) -> None:
        """`names_executors`: routers report the backend that executed each call, for callers of `EXECUTED_PAYLOADS`.

        `buffer`: bounds the calls that wait here; None: no bound.
        """
        self.endpoint = endpoint
        self._routers = routers
        shares = BufferShares(buffer)
        self._outbox = CallOutbox(shares)
        self._counts_here = not shares.buffer.has_threads
        """Without other threads, calls are counted without a lock."""
        self._has_looked = False
        """Whether cancelled calls were looked for in this turn of the event loop."""
        self._feeds = MapFeeds(endpoint, self._add_map, CLOSED)
        self._connection = Connection(
            endpoint, routers, connect_timeout_s, self._outbox, self._make_again, names_executors=names_executors
        )
        self._choice = RouterChoice(routers, connect_timeout_s, lambda: self._connection.address)
        self.own_values: WeakSet[RpcValues] = WeakSet()
        """Those of calls by rpcs of their own, as far as the application has their iterators."""
        self._queues: WeakValueDictionary[str, CallQueue[Any]] = WeakValueDictionary()
        self._groups = LaneGroups()
        self._stops = StopGenerations(self._on_lane_failure)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def dialer(self) -> Dialer:
        """Connects to routers."""
        return self._routers.dialer

    @property
    def own_rpcs(self) -> RouterChoice:
        """For calls without a stream. Of a list of routers, they use the one that the stream uses."""
        return self._choice

    def stub_of(self, address: str) -> router_service_pb2_grpc.RouterServiceStub:
        """The stub of a router. Requested for each rpc."""
        return self._routers.stub(address)

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(
        self, spec: CallSpec, payload: bytes, sink: CallSink | None = None, *, has_place: bool = False
    ) -> asyncio.Future[Any]:
        """Makes a call. It leaves with its neighbours, as soon as the stream can take a frame.

        `sink`: takes the outcome in place of the future, and is returned. `has_place`: it is counted in its share.
        """
        future: asyncio.Future[Any] = self._loop.create_future() if sink is None else cast("Any", sink)
        size, run = len(payload), spec.queue.tail
        if size > self._connection.max_payload_bytes:
            failure = too_large(size, self._connection.max_payload_bytes)
            return self._refuse(spec, future, failure, place=size if has_place else None)
        if run is None or run.spec is not spec:
            if (stop := spec.queue.stop) is not None and 0 < spec.stop_generation <= stop.failed:
                return self._refuse(spec, future, stop.refusal(), place=size if has_place else None)
            if not has_place:
                self._check_open()
                if not self._take_place(spec, size):
                    return self.refuse_full(spec, future)
            elif self._closing:
                self.share_of(spec).give(1, size)
            run = self._open_run(spec)
            if has_place and self._feeds.is_waiting(spec.queue):
                spec.queue.tail = None  # the next call follows those that wait
        elif has_place:
            pass
        elif self._counts_here:
            share = run.share
            share.calls += 1
            share.nbytes += size
            is_beyond = share.calls > share.granted_calls or share.nbytes > share.granted_bytes
            if is_beyond and not share.admit(1, size) and not self._take_place(spec, size):
                return self.refuse_full(spec, future)
        elif not self._take_place(spec, size):
            return self.refuse_full(spec, future)
        run.payloads.append(payload)
        run.sinks.append(future)
        return future

    async def send(self, spec: CallSpec, payload: bytes) -> asyncio.Future[Any]:
        """Makes a call once there is room for it. Calls of a lane keep their order."""
        share, queue, size = self.share_of(spec), spec.queue, len(payload)
        fits = size <= self._connection.max_payload_bytes
        if not (spec.ordering_key and self._feeds.is_waiting(queue)):
            if not fits or self._take_place(spec, size):
                return self.submit(spec, payload, has_place=fits)
            if not spec.ordering_key:
                await share.room(size)
                return self.submit(spec, payload, has_place=True)
        queue.tail = None  # later calls of the lane come behind this one
        place = self._feeds.join(queue)
        try:
            await place.turn
            if fits:
                await share.room(size)
            return self.submit(spec, payload, has_place=fits)
        finally:
            self._feeds.leave(queue, place)

    def submit_map(self, spec: CallSpec, pieces: Iterator[Piece], *, keeps_failures: bool) -> asyncio.Future[list[Any]]:
        """Makes a call for each payload, all with one future. Those for which there is no room are made later."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        share = self.share_of(spec)
        payloads, nbytes, has_room = first_pieces(pieces, share)
        self._check_open()
        if not payloads:
            future.set_result([])
        elif (
            has_room
            and not (spec.ordering_key and self._feeds.is_waiting(spec.queue))
            and share.take(len(payloads), nbytes)
        ):
            self._add_map(spec, payloads, Gather(len(payloads), future, keeps_failures=keeps_failures), 0)
        else:
            gather = Gather(0, future, keeps_failures=keeps_failures, is_open=True)
            spec.queue.tail = None  # or later calls of the lane would join those before the map
            self._feeds.start(spec, share, payloads, pieces, gather)
        return future

    def submit_part(self, spec: CallSpec, payloads: list[bytes], gather: Gather) -> None:
        """Makes calls of a map that have their places. Its gather is open."""
        if not self._closing:
            self._add_map(spec, payloads, gather, gather.extend(len(payloads)))
            return
        self.share_of(spec).give(len(payloads), sum(map(len, payloads)))
        self._check_open()

    def share_of(self, spec: CallSpec) -> BufferShare:
        """The share in which waiting calls of this spec are counted."""
        return self._outbox.share_of(spec)

    async def aclose(self, grace_s: float) -> None:
        """Sends what waits, and waits for calls that a caller waits for, at most `grace_s` seconds; fails the rest."""
        self._closing = True
        self._choice.close()
        until = self._loop.time() + grace_s
        await self._feeds.end(grace_s)
        await end_streams(self._connection, lambda: self._tasks, until, CLOSED)

    def queue_of(self, ordering_key: str) -> CallQueue[Any]:
        """The queue of an ordering key, shared by all of its lanes."""
        queue = self._queues.get(ordering_key)
        if queue is None:
            queue = self._queues[ordering_key] = CallQueue(self._groups)
        return queue

    def stop_of(self, queue: CallQueue[Any], ordering_key: str) -> LaneStop:
        """The stop state of the lane of this queue, which stops at failures."""
        return self._stops.stop_of(queue, ordering_key)

    def _on_lane_failure(self, queue: CallQueue[Any], generation: int) -> None:
        for part in self._outbox.take_stopped(queue, generation):
            refuse(part)

    def _make_again(self, spec: CallSpec, payload: bytes, sink: CallSink, since: float) -> None:
        """Makes a call again that its router had not started when it left. Its timeout still counts from `since` on."""
        if self._closing:
            fail(SentPart(spec, [payload], 0, [sink]), 0, 1, CLOSED)
        else:
            self._outbox.add_again(spec, payload, sink, since)
            self._wake()

    def _open_run(self, spec: CallSpec) -> WaitingRun:
        if self._closing:
            self._check_open()
        run = self._outbox.open_run(spec)
        if not run.payloads:
            self._wake()
        return run

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError(f"the mesh is closed: no more calls of {self.endpoint}")

    def _take_place(self, spec: CallSpec, size: int) -> bool:
        """Returns False also if the call would overtake waiting calls of its lane."""
        if spec.ordering_key and self._feeds.is_waiting(spec.queue):
            return False
        share = self.share_of(spec)
        return share.take(1, size) or (self._drop_cancelled() and share.take(1, size))

    def _drop_cancelled(self) -> bool:
        """Removes cancelled calls, which take room, at most once in a turn of the event loop."""
        if self._has_looked:
            return False
        self._has_looked = True
        self._loop.call_soon(self._look_again)
        self._outbox.drop_cancelled()
        return True

    def _look_again(self) -> None:
        self._has_looked = False

    def _refuse(
        self, spec: CallSpec, future: asyncio.Future[Any], failure: Failure, *, place: int | None
    ) -> asyncio.Future[Any]:
        """`place`: bytes of the call, if it is counted in its share."""
        if place is not None:
            self.share_of(spec).give(1, place)
        fail(SentPart(spec, [b""], 0, [future]), 0, 1, failure)
        return future

    def refuse_full(self, spec: CallSpec, future: Any) -> asyncio.Future[Any]:
        """Fails a call for which there is no room. Of many in a row, asyncio reports one as never retrieved."""
        share = self.share_of(spec)
        fail(SentPart(spec, [b""], 0, [future]), 0, 1, share.full(), is_repeated=share.has_refused)
        share.has_refused = True
        return cast("asyncio.Future[Any]", future)

    def _add_map(self, spec: CallSpec, payloads: list[bytes], gather: Gather, offset: int) -> None:
        """Calls of a map that have their places in the share, the first one at `offset`."""
        if (stop := spec.queue.stop) is not None and 0 < spec.stop_generation <= stop.failed:
            fail(SentPart(spec, payloads, 0, [], gather, offset), 0, len(payloads), stop.refusal())
            self.share_of(spec).give(len(payloads), sum(map(len, payloads)))
            return
        limit = self._connection.max_payload_bytes
        if sum(map(len, payloads)) <= limit or max(map(len, payloads)) <= limit:
            self._outbox.add_map(spec, payloads, gather, offset)
        else:
            self._add_map_without_oversize(spec, payloads, gather, offset)
        self._wake()

    def _add_map_without_oversize(self, spec: CallSpec, payloads: list[bytes], gather: Gather, offset: int) -> None:
        """Calls that are too large fail, those between them are made."""
        start, limit, share = 0, self._connection.max_payload_bytes, self.share_of(spec)
        for index, payload in enumerate(payloads):
            if len(payload) > limit:
                if start < index:
                    self._outbox.add_map(spec, payloads[start:index], gather, offset + start)
                share.give(1, len(payload))
                fail(SentPart(spec, [b""], 0, [], gather, offset + index), 0, 1, too_large(len(payload), limit))
                start = index + 1
                if spec.queue.stop is not None and spec.stop_generation and start < len(payloads):
                    rest = payloads[start:]
                    share.give(len(rest), sum(map(len, rest)))
                    stopped = SentPart(spec, rest, 0, [], gather, offset + start)
                    fail(stopped, 0, len(rest), spec.queue.stop.refusal())
                    return
        if start < len(payloads):
            self._outbox.add_map(spec, payloads[start:], gather, offset + start)

    # -- connection ------------------------------------------------------------------------------------------------

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        """All that have calls under way."""
        return self._connection.lingering | (set() if self._task is None else {self._task})

    def _wake(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"slotmesh-client-{self.endpoint}")
        else:
            self._connection.wake()

    async def _run(self) -> None:
        """Runs until no call is left, or no router is found."""
        failure = CLOSED
        try:
            failure = await self._connection.serve()
        except Exception as error:
            log.exception("the client of endpoint %r failed", self.endpoint)
            failure = Failure(reason=Reason.INTERNAL, message=f"the client failed: {error!r}")
        finally:
            self._connection.fail_all(failure)
            self._task = None
