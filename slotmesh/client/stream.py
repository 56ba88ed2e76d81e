"""All calls of one endpoint: made here, sent over one stream at a time.

Purpose: takes calls at once, opens the stream when there are some, opens another one when it broke.
Invariants: every future gets its outcome. What was sent over a stream that broke is lost, executed=unknown; what was
not sent goes over the next stream, in order, unless no router can be reached for `connect_timeout_s`: executed=no.
Owner: the `Mesh`; all views of an endpoint share one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import grpc

from slotmesh.client.gather import Gather
from slotmesh.client.link import Request, Response, RouterLink, StreamCall
from slotmesh.client.outbox import Outbox
from slotmesh.client.outcomes import fail
from slotmesh.client.runs import CallQueue, Part, WaitingRun
from slotmesh.client.spec import CallSpec
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.backoff import Backoff
from slotmesh.status import from_rpc_error
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc

_WORTH_ANOTHER_TRY = frozenset({Reason.ROUTER_LOST, Reason.CANCELLED, Reason.INTERNAL, Reason.DRAINING})
"""What the transport says where a router is not there yet, or no more."""

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Until the router has said how large a payload may be."""

IDLE_GRACE_S = 1.0
"""How long the orderly end of a stream may take on which nothing is unanswered."""

log = logging.getLogger(__name__)


class CallStream:
    """Takes calls, gives futures."""

    def __init__(
        self,
        endpoint: str,
        address: str,
        stub: router_service_pb2_grpc.RouterServiceStub,
        connect_timeout_s: float,
    ) -> None:
        self.endpoint = endpoint
        self.stub = stub
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._outbox = Outbox()
        self._queues: WeakValueDictionary[str, CallQueue] = WeakValueDictionary()
        self._max_payload_bytes = MAX_PAYLOAD_BYTES
        self._loop = asyncio.get_running_loop()
        self._link: RouterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._next_id = 1
        self._closing = False

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(self, spec: CallSpec, payload: bytes) -> asyncio.Future[Any]:
        """Makes a call. It leaves with its neighbours, as soon as the stream can take a frame."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(payload) > self._max_payload_bytes:
            fail(Part(spec, [0], 0, [future]), 0, 1, self._too_large(len(payload)))
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
        if max(map(len, payloads)) <= self._max_payload_bytes:
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
        if self._link is not None:
            self._link.finish()
            if self._link.idle:
                grace_s = min(grace_s, IDLE_GRACE_S)
        await asyncio.wait((task,), timeout=grace_s)
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
            if len(payload) > self._max_payload_bytes:
                if start < index:
                    self._outbox.add_map(spec, payloads[start:index], gather, start)
                fail(Part(spec, [0], 0, [], gather, index), 0, 1, self._too_large(len(payload)))
                start = index + 1
        if start < len(payloads):
            self._outbox.add_map(spec, payloads[start:], gather, start)

    def _too_large(self, actual: int) -> Failure:
        limit = self._max_payload_bytes
        return Failure(
            reason=Reason.PAYLOAD_TOO_LARGE,
            message=f"the payload has {actual} bytes, the limit is {limit} bytes",
            metadata={"limit": str(limit), "actual": str(actual)},
        )

    # -- connection ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"slotmesh-client-{self.endpoint}")
        elif self._link is not None:
            self._link.wake()

    async def _run(self) -> None:
        """One link after the other, until nothing is left to send, or nobody is left to send it to."""
        failure = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was sent")
        try:
            failure = await self._serve_outbox()
        except Exception as error:
            log.exception("the client of endpoint %r failed", self.endpoint)
            failure = Failure(reason=Reason.INTERNAL, message=f"the client failed: {error!r}")
        finally:
            for told, part in enumerate(self._outbox.drain()):
                fail(part, 0, part.count, failure, told=told > 0)
                part.spec.queue.settled(part.count)
            self._task = None

    async def _serve_outbox(self) -> Failure:
        """Says what to tell the calls that are left."""
        backoff = Backoff()
        problem = "no answer"
        patience_s = self._connect_timeout_s
        while self._outbox:
            answered = 0
            began = self._loop.time()
            try:
                async with asyncio.timeout(max(patience_s, 0)):
                    link = await self._open()
            except TimeoutError:
                return self._unreachable(problem)
            except grpc.RpcError as error:
                refusal = from_rpc_error(error)
                if refusal.reason not in _WORTH_ANOTHER_TRY:
                    return replace(refusal, executed=Executed.NO)
                problem = refusal.message
                patience_s -= self._loop.time() - began
            else:
                patience_s -= self._loop.time() - began
                answered = await self._serve(link)
            if answered:
                patience_s = self._connect_timeout_s
                backoff.reset()
            elif self._outbox:
                delay_s = backoff.next_delay_s()
                patience_s -= delay_s
                await asyncio.sleep(delay_s)
        return self._unreachable(problem)  # nothing is left: nobody is told

    async def _open(self) -> RouterLink:
        """A stream that the router has answered: nothing is sent to a router that may not be there."""
        spec = self._outbox.first_spec
        call: StreamCall = self.stub.StreamCalls(wait_for_ready=True)
        try:
            opening = router_service_pb2.OpenStream(endpoint=self.endpoint, default_options=spec.wire)
            with suppress(asyncio.InvalidStateError):  # it failed already; reading says why
                await call.write(Request(open=opening))
            response = await call.read()
            if not isinstance(response, Response) or response.WhichOneof("frame") != "opened":
                raise ValueError(f"{self._address} does not answer as a router: {response}")
        except BaseException:
            call.cancel()
            raise
        self._max_payload_bytes = response.opened.max_payload_bytes or MAX_PAYLOAD_BYTES
        link = RouterLink(call, self._outbox, spec, self._next_id)
        link.accept(response)
        return link

    async def _serve(self, link: RouterLink) -> int:
        """Uses a link until it ends. Says how many calls it answered."""
        failure = self._lost("the mesh was closed", Reason.CANCELLED)
        self._link = link
        try:
            if self._closing:
                link.finish()
            await link.run()
            failure = self._lost("the router ended the stream")
        except grpc.RpcError as error:
            refusal = from_rpc_error(error)
            if refusal.reason in _WORTH_ANOTHER_TRY:
                failure = self._lost(f"the stream broke ({refusal.message})")
            else:
                failure = replace(refusal, executed=Executed.UNKNOWN)
        except Exception as error:
            log.exception("the stream of endpoint %r failed", self.endpoint)
            failure = self._lost(f"the client failed: {error!r}", Reason.INTERNAL)
        finally:
            self._link = None
            self._next_id = link.next_id
            link.lose(failure)
        return link.answered

    def _lost(self, why: str, reason: Reason = Reason.ROUTER_LOST) -> Failure:
        return Failure(
            reason=reason,
            message=f"{why} before the router at {self._address} answered the call; it may have been executed",
            executed=Executed.UNKNOWN,
        )

    def _unreachable(self, problem: str) -> Failure:
        return Failure(
            reason=Reason.ROUTER_LOST,
            message=f"no router answered at {self._address} within {self._connect_timeout_s:g} s ({problem}), so the "
            f"call was not sent; start one there, or give connect() the address of one",
        )
