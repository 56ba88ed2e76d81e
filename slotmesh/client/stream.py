"""All calls of one endpoint: made here, sent over one connection.

Purpose: takes calls at once, has them sent, gives futures.
Invariants: every future gets its outcome. The connection is served by one task, while there is something to do.
Owner: the `Mesh`; all views of an endpoint share one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from weakref import WeakValueDictionary

from slotmesh.client.connection import Connection
from slotmesh.client.gather import Gather
from slotmesh.client.outbox import Outbox
from slotmesh.client.outcomes import fail
from slotmesh.client.routers import Routers
from slotmesh.client.runs import CallQueue, Part, WaitingRun
from slotmesh.client.spec import CallSpec
from slotmesh.errors import Failure, Reason
from slotmesh.v1 import router_service_pb2_grpc

IDLE_GRACE_S: Final = 1.0
"""How long the orderly end of a stream may take on which nothing is unanswered."""

LAST_WORDS_S: Final = 0.2
"""How long a router may take to hear that nobody waits for what is unanswered, when a mesh is closed."""

CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was answered")

log = logging.getLogger(__name__)


class CallStream:
    """Takes calls, gives futures."""

    def __init__(
        self,
        endpoint: str,
        routers: Routers,
        connect_timeout_s: float,
    ) -> None:
        self.endpoint = endpoint
        self._routers = routers
        self._outbox = Outbox()
        self._connection = Connection(endpoint, routers, connect_timeout_s, self._outbox)
        self._queues: WeakValueDictionary[str, CallQueue] = WeakValueDictionary()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def stub(self) -> router_service_pb2_grpc.RouterServiceStub:
        """Of the router that is used now: for calls without a stream."""
        return self._routers.stub(self._connection.address or self._routers.given[0])

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(self, spec: CallSpec, payload: bytes) -> asyncio.Future[Any]:
        """Makes a call. It leaves with its neighbours, as soon as the stream can take a frame."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(payload) > self._connection.max_payload_bytes:
            fail(Part(spec, [b""], 0, [future]), 0, 1, self._too_large(len(payload)))
            return future
        run = spec.queue.tail
        if run is None or run.spec is not spec:
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
        if max(map(len, payloads)) <= self._connection.max_payload_bytes:
            self._outbox.add_map(spec, payloads, gather, 0)
        else:
            self._add_map_without_oversize(spec, payloads, gather)
        self._wake()
        return future

    async def aclose(self, grace_s: float) -> None:
        """Sends what waits, waits for what is unanswered, at most `grace_s` seconds; then fails the rest."""
        self._closing = True
        task = self._task
        if task is None:
            return
        self._connection.finish()
        if self._connection.idle:
            grace_s = min(grace_s, IDLE_GRACE_S)
        await asyncio.wait((task,), timeout=grace_s)
        if not task.done():
            self._connection.abandon(CLOSED)
            await asyncio.wait((task,), timeout=LAST_WORDS_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def queue_of(self, ordering_key: str) -> CallQueue:
        """The queue of an ordering key, shared by all of its lanes."""
        queue = self._queues.get(ordering_key)
        if queue is None:
            queue = self._queues[ordering_key] = CallQueue()
        return queue

    def _open_run(self, spec: CallSpec) -> WaitingRun:
        self._check_open()
        run = self._outbox.open_run(spec)
        self._wake()
        return run

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError(f"the mesh is closed: no more calls of {self.endpoint}")

    def _add_map_without_oversize(self, spec: CallSpec, payloads: list[bytes], gather: Gather) -> None:
        """Calls that are too large fail, those between them are made."""
        start = 0
        for index, payload in enumerate(payloads):
            if len(payload) > self._connection.max_payload_bytes:
                if start < index:
                    self._outbox.add_map(spec, payloads[start:index], gather, start)
                fail(Part(spec, [b""], 0, [], gather, index), 0, 1, self._too_large(len(payload)))
                start = index + 1
        if start < len(payloads):
            self._outbox.add_map(spec, payloads[start:], gather, start)

    def _too_large(self, actual: int) -> Failure:
        limit = self._connection.max_payload_bytes
        return Failure(
            reason=Reason.PAYLOAD_TOO_LARGE,
            message=f"the payload has {actual} bytes, the limit is {limit} bytes",
            metadata={"limit": str(limit), "actual": str(actual)},
        )

    # -- connection ------------------------------------------------------------------------------------------------

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
