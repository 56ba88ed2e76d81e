"""All calls of one endpoint: made here, sent over one connection.

Purpose: takes calls at once, has them sent, gives futures.
Invariants: every future gets its outcome. The connection is served by one task, while there is something to do.
Owner: the `Mesh`; all views of an endpoint share one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, Protocol, cast
from weakref import WeakValueDictionary

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.gather import Gather
from slotmesh.client.calls.lane_stops import LaneStop, StopGenerations
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.outcomes import fail, refuse
from slotmesh.client.calls.payload_limits import too_large
from slotmesh.client.calls.queues import CallQueue, LaneGroups
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.calls.waiting_runs import WaitingRun
from slotmesh.client.stream.connection import Connection
from slotmesh.client.stream.routers import Routers
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.v1 import router_service_pb2_grpc

IDLE_GRACE_S: Final = 1.0
"""How long the orderly end of a stream may take on which nothing is unanswered."""

LAST_WORDS_S: Final = 0.2
"""How long a router may take to hear that nobody waits for what is unanswered, when a mesh is closed."""

CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was answered")

log = logging.getLogger(__name__)


class CallSink(Protocol):
    """What takes a call's outcome, once. An asyncio future does; whatever else does must be as quick."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def exception(self) -> BaseException | None: ...


class CallStream:
    """Takes calls, gives futures."""

    def __init__(
        self,
        endpoint: str,
        routers: Routers,
        connect_timeout_s: float,
        *,
        names_executors: bool = False,
    ) -> None:
        """`names_executors`: routers say which backend has executed each call, for who wants `EXECUTED_PAYLOADS`."""
        self.endpoint = endpoint
        self._routers = routers
        self._outbox = CallOutbox()
        self._connection = Connection(
            endpoint, routers, connect_timeout_s, self._outbox, self._make_again, names_executors=names_executors
        )
        self._queues: WeakValueDictionary[str, CallQueue[Any]] = WeakValueDictionary()
        self._groups = LaneGroups()
        self._stops = StopGenerations(self._on_lane_failure)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def address(self) -> str:
        """The router that is used now."""
        return self._connection.address or self._routers.given[0]

    @property
    def dialer(self) -> Dialer:
        """What connects to routers."""
        return self._routers.dialer

    @property
    def stub(self) -> router_service_pb2_grpc.RouterServiceStub:
        """Of that router: for calls without a stream."""
        return self._routers.stub(self.address)

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(self, spec: CallSpec, payload: bytes, sink: CallSink | None = None) -> asyncio.Future[Any]:
        """Makes a call. It leaves with its neighbours, as soon as the stream can take a frame.

        `sink`: takes the outcome in place of the future, and is returned.
        """
        future: asyncio.Future[Any] = self._loop.create_future() if sink is None else cast("Any", sink)
        if len(payload) > self._connection.max_payload_bytes:
            fail(SentPart(spec, [b""], 0, [future]), 0, 1, too_large(len(payload), self._connection.max_payload_bytes))
            return future
        run = spec.queue.tail
        if run is None or run.spec is not spec:
            if (stop := spec.queue.stop) is not None and 0 < spec.stop_generation <= stop.failed:
                fail(SentPart(spec, [b""], 0, [future]), 0, 1, stop.refusal())
                return future
            run = self._open_run(spec)
        run.payloads.append(payload)
        run.sinks.append(future)
        return future

    def submit_map(self, spec: CallSpec, payloads: list[bytes], *, keeps_failures: bool) -> asyncio.Future[list[Any]]:
        """Makes a call for each payload, all with one future."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not payloads:
            future.set_result([])
            return future
        gather = Gather(len(payloads), future, keeps_failures=keeps_failures)
        self._check_open()
        if (stop := spec.queue.stop) is not None and 0 < spec.stop_generation <= stop.failed:
            fail(SentPart(spec, payloads, 0, [], gather), 0, len(payloads), stop.refusal())
            return future
        if max(map(len, payloads)) <= self._connection.max_payload_bytes:
            self._outbox.add_map(spec, payloads, gather, 0)
        else:
            self._add_map_without_oversize(spec, payloads, gather)
        self._wake()
        return future

    async def aclose(self, grace_s: float) -> None:
        """Sends what waits, waits for what is unanswered, at most `grace_s` seconds; then fails the rest."""
        self._closing = True
        if not self._tasks:
            return
        self._connection.finish()
        if self._connection.idle and not self._connection.lingering:
            grace_s = min(grace_s, IDLE_GRACE_S)
        if not await self._have_ended(grace_s):
            self._connection.abandon(CLOSED)
            await self._have_ended(LAST_WORDS_S)
        left = self._tasks
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def queue_of(self, ordering_key: str) -> CallQueue[Any]:
        """The queue of an ordering key, shared by all of its lanes."""
        queue = self._queues.get(ordering_key)
        if queue is None:
            queue = self._queues[ordering_key] = CallQueue(self._groups)
        return queue

    def stop_of(self, queue: CallQueue[Any], ordering_key: str) -> LaneStop[CallQueue[Any]]:
        """Whether the lane of this queue, which stops at failures, goes on."""
        return self._stops.stop_of(queue, ordering_key)

    def _on_lane_failure(self, queue: CallQueue[Any], generation: int) -> None:
        for part in self._outbox.take_stopped(queue, generation):
            refuse(part)

    def _make_again(self, spec: CallSpec, payload: bytes, sink: CallSink, since: float) -> None:
        """A call that its router has not begun with before it left. Its timeout counts from `since` on, as ever."""
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

    def _add_map_without_oversize(self, spec: CallSpec, payloads: list[bytes], gather: Gather) -> None:
        """Calls that are too large fail, those between them are made."""
        start, limit = 0, self._connection.max_payload_bytes
        for index, payload in enumerate(payloads):
            if len(payload) > limit:
                if start < index:
                    self._outbox.add_map(spec, payloads[start:index], gather, start)
                fail(SentPart(spec, [b""], 0, [], gather, index), 0, 1, too_large(len(payload), limit))
                start = index + 1
                if spec.queue.stop is not None and spec.stop_generation and start < len(payloads):
                    rest = payloads[start:]
                    fail(SentPart(spec, rest, 0, [], gather, start), 0, len(rest), spec.queue.stop.refusal())
                    return
        if start < len(payloads):
            self._outbox.add_map(spec, payloads[start:], gather, start)

    # -- connection ------------------------------------------------------------------------------------------------

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        """All that have calls under way."""
        return self._connection.lingering | (set() if self._task is None else {self._task})

    async def _have_ended(self, within_s: float) -> bool:
        """Waits for all tasks: for those, too, that begin meanwhile because a router leaves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while tasks := self._tasks:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return not self._tasks

    def _wake(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"slotmesh-client-{self.endpoint}")
        else:
            self._connection.wake()

    async def _run(self) -> None:
        """Until nothing is left to send and nothing unanswered, or nobody is left to send it to."""
        failure = CLOSED
        try:
            failure = await self._connection.serve()
        except Exception as error:
            log.exception("the client of endpoint %r failed", self.endpoint)
            failure = Failure(reason=Reason.INTERNAL, message=f"the client failed: {error!r}")
        finally:
            self._connection.fail_all(failure)
            self._task = None
