"""Unary calls: each a caller of its own with one call, coalesced with all others on the way to the replicas.

Invariants: at most `max_pending` are pending, more are refused before they cost anything; a caller that disconnects
cancels its call. All calls of one peer share one flow: a peer that floods waits behind itself.
Owner: the router's servicer; `slot_servicer` shares the flows and the bound.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import grpc

from router_service import convert
from router_service.core.callers import START_WINDOW
from router_service.core.calls import Flow, RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.events import CallsSubmitted
from router_service.core.limits.quotas import CallQuotas
from router_service.core.runs import Caller
from router_service.shell.clients.own_rpcs import PassedCall
from router_service.shell.clients.result_frames import values_singly
from router_service.shell.clients.taken_values import Taking
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.receivers import CallerSink
from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.calls.trace_context import REQUEST_ID, TraceContext, is_request_id, is_traceparent, is_tracestate
from slotmesh.errors import Failure, Reason
from slotmesh.security.identity import quota_name
from slotmesh.security.rpc_roles import known_endpoints
from slotmesh.spec.rules import show
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.v1 import call_pb2

Context = grpc.aio.ServicerContext[Any, Any]
_TRACE: Final = frozenset({"traceparent", "tracestate"})


class HandedMetadata:
    """The allow-list of gRPC metadata of unary rpcs that handlers get to see.

    The trace context is taken if the list names it, or if the router makes spans; `x-request-id` always, if it is an
    id.
    Invariants: the options of a call override the metadata of its rpc; both together are bounded as the options are.
    Reserved names cannot be on the list. An invalid trace context is ignored, as W3C Trace Context requires.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Collection[str] = (), *, with_traces: bool = False) -> None:
        self._keys = frozenset(keys) | {REQUEST_ID} | (_TRACE if with_traces else frozenset())

    def take(self, context: Context, wire: call_pb2.CallOptions, *, from_http: bool = False) -> TraceContext | None:
        """Adds the metadata of the rpc to the options of its call; returns its trace context, if it has one.

        `from_http`: an HTTP front makes the call, and always states the trace.
        """
        return self.take_of(context.invocation_metadata() or (), wire, from_http=from_http)

    def take_of(
        self, metadata: Iterable[tuple[str, str | bytes]], wire: call_pb2.CallOptions, *, from_http: bool = False
    ) -> TraceContext | None:
        """The same, of metadata."""
        trace: dict[str, str] = {}
        keys = self._keys | _TRACE if from_http else self._keys
        for key, value in metadata:
            if key not in keys or not isinstance(value, str):
                continue
            if key in _TRACE:
                trace[key] = value
            elif key not in wire.metadata and (key != REQUEST_ID or is_request_id(value)):
                wire.metadata[key] = value
        traceparent, tracestate = trace.get("traceparent", ""), trace.get("tracestate", "")
        if not is_traceparent(traceparent):
            return None
        return TraceContext(traceparent, tracestate if is_tracestate(tracestate) else "")


WriteValue = Callable[[bytes, str, str, str], Awaitable[object]]
"""Takes a payload, its content type, and who executes the call: backend and replica, empty but for the first value."""


class StreamedCall:
    """One unary call that streams the values of its handler: writes each value to the client, then how the call ended.

    Invariants: values are written in order, one at a time, and before the failure that may follow them. At most the
    credit of one call waits for a client that reads slowly: its handler continues when values were written.
    Owner: the servicer's task of this call.
    """

    def __init__(self, dispatcher: Dispatcher, write: WriteValue) -> None:
        self._taking = Taking(dispatcher, {})
        self._write = write
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._is_first = True
        """No value was written."""

    def deliver(self, delivery: Delivery) -> None:
        """Values of the call, or its outcome."""
        self._deliveries.put_nowait(delivery)

    async def run(self) -> Failure | None:
        """Writes until the call has ended; returns why it failed, if it did."""
        while True:
            match await self._deliveries.get():
                case DeliverValues() as values:
                    await self._write_values(values)
                case DeliverFailure(failure=failure):
                    return failure
                case DeliverDone():
                    return None
                case result:
                    await self._write_value(joined(result.payloads[0]), result)
                    return None

    async def _write_values(self, values: DeliverValues) -> None:
        for each in values_singly(values):
            self._taking.leave(each)
            payload = joined(each.payloads[0])  # type: ignore[arg-type]  # only a writer of chunks puts a size in its place
            await self._write_value(payload, each)
            self._taking.written()

    async def _write_value(self, payload: bytes, source: DeliverValues | DeliverResults) -> None:
        backend, replica_id = (source.replica.backend.name, source.replica.replica_id) if self._is_first else ("", "")
        self._is_first = False
        await self._write(payload, source.content_type, backend, replica_id)


_TENANT_THRESHOLD: Final = DynamicThreshold()
"""Of what one tenant may have pending."""
_IDS = range(1, 2)
Answer = DeliverResults | DeliverDone | Failure
"""How a call ends."""


TimeLeft: TypeAlias = Callable[[], float | None]
"""Seconds to the deadline of an rpc; None if it has none."""
OVERDUE_WITHIN_S: Final = 0.02
"""A client ends its rpc at its own deadline, and the router learns of it shortly before its own timer expires."""


class UnaryCalls:
    """Submits single calls and awaits their outcomes."""

    def __init__(self, dispatcher: Dispatcher, max_pending: int, quotas: CallQuotas | None = None) -> None:
        """`quotas`: what of calls one caller may have in flight."""
        self._dispatcher = dispatcher
        self._quotas = quotas or CallQuotas()
        self._max_pending = max_pending
        self._pending = 0
        self._peers: dict[str, _Peer] = {}
        """Those with calls that are pending."""
        self.has_served = False
        """There was a call."""
        self.refusal: Failure | None = None
        """What calls fail with from now on; None: they are taken."""
        self.refused = 0
        """The number of calls that have failed with it."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def idle(self) -> None:
        """Returns when no call is pending."""
        await self._is_idle.wait()

    async def call(
        self,
        peer: str,
        endpoint: str,
        options: RouterCallOptions,
        payload: bytes,
        trace: TraceContext | None = None,
        time_left: TimeLeft = lambda: None,
    ) -> Answer:
        """The outcome of one call; `peer` identifies the connection, `time_left` is that of the rpc."""
        if failure := self.full(len(payload), peer=peer, tenant=options.tenant):
            return failure
        pending = PendingAnswer()
        with self.under_way(peer, pending, len(payload), tenant=options.tenant, time_left=time_left) as caller:
            self._submit(caller, endpoint, options, payload, trace)
            return await pending.outcome

    async def stream(
        self,
        peer: str,
        endpoint: str,
        options: RouterCallOptions,
        payload: bytes,
        write: WriteValue,
        trace: TraceContext | None = None,
        time_left: TimeLeft = lambda: None,
    ) -> Failure | None:
        """Writes the values of one call as they come; returns why it failed, if it did."""
        streamed = StreamedCall(self._dispatcher, write)
        return await self.passed(peer, endpoint, options, payload, streamed, trace, time_left)

    async def passed(
        self,
        peer: str,
        endpoint: str,
        options: RouterCallOptions,
        payload: bytes,
        call: PassedCall | StreamedCall,
        trace: TraceContext | None = None,
        time_left: TimeLeft = lambda: None,
    ) -> Failure | None:
        """Writes responses of one call as they arrive, and passes its requests on; returns why it failed, if it did."""
        if failure := self.full(len(payload), peer=peer, tenant=options.tenant):
            return failure
        with self.under_way(
            peer, call, len(payload), tenant=options.tenant, max_value_bytes=MAX_INLINE_BYTES, time_left=time_left
        ) as caller:
            self._submit(caller, endpoint, options, payload, trace)
            return await call.run()

    def full(self, size: int = 0, *, for_slots: bool = False, peer: str = "", tenant: str = "") -> Failure | None:
        """Why no more is taken of the caller of the running rpc; None while there is room for `size` payload bytes.

        A `tenant` of a `peer` has no more calls pending than it leaves room for.

        `for_slots`: of what is done with slots that were given, which frees them, twice as much is taken.
        """
        if self.refusal is not None and not for_slots:
            self.refused += 1
            return self.refusal
        self.has_served = True
        left = (2 * self._max_pending if for_slots else self._max_pending) - self._pending
        held = self._peers[peer].tenants[tenant] if tenant and peer in self._peers else 0
        if left > 0 and (not held or _TENANT_THRESHOLD.room(held, left) > 0):
            share = self._quotas.share_of(quota_name())
            return None if share is None else share.refusal(1, size)
        of_tenant = (
            f", {held} of them of tenant {show(tenant)!r} of this client, which gets half of the room that it leaves"
        )
        return Failure(
            reason=Reason.QUEUE_FULL,
            message=(
                f"{self._pending} unary calls are pending of the {self._max_pending} that this router takes "
                f"(max_pending_unary){of_tenant if left > 0 else ''}; "
                "try again later, or use StreamCalls"
            ),
            retry_delay_s=0.1,
        )

    def _submit(
        self, caller: Caller, endpoint: str, options: RouterCallOptions, payload: bytes, trace: TraceContext | None
    ) -> None:
        if options.slo_at is not None:
            options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
        traces = None if trace is None else {_IDS[0]: trace}
        if (spans := self._dispatcher.traces) is not None:
            traces = spans.arrived(caller, endpoint, options.method, _IDS, traces, self._dispatcher.clock.now())
        self._dispatcher.post(CallsSubmitted(caller, endpoint, [(options, _IDS, [payload])], traces))

    @contextmanager
    def under_way(
        self,
        peer: str,
        sink: CallerSink,
        size: int = 0,
        *,
        tenant: str = "",
        max_value_bytes: int = MAX_PAYLOAD_BYTES,
        time_left: TimeLeft = lambda: None,
    ) -> Iterator[Caller]:
        """A caller of the peer's, for as long as the block lasts; what is open of it then is cancelled.

        It has one call, of `size` payload bytes, of the `tenant`. `max_value_bytes`: a larger result, or value, fails
        the call. `time_left` is that of the rpc.
        """
        sharing = self._peers.get(peer)
        if sharing is None:
            sharing = self._peers[peer] = _Peer()
        sharing.pending += 1
        if tenant:
            sharing.tenants[tenant] += 1
        share = self._quotas.share_of(quota_name())
        caller = Caller(START_WINDOW, sharing.flow, max_value_bytes=max_value_bytes, share=share)
        self._dispatcher.scheduler.joined(caller, size)
        caller.knows = known_endpoints()
        self._dispatcher.attach(caller, sink)
        self._pending += 1
        self._is_idle.clear()
        try:
            yield caller
        finally:
            self._dispatcher.scheduler.left(caller)
            self._pending -= 1
            sharing.pending -= 1
            if tenant:
                sharing.left(tenant)
            if not sharing.pending:
                del self._peers[peer]
            if not self._pending:
                self._is_idle.set()
            left_s = time_left() if caller.has_open_calls else None
            self._dispatcher.detach(caller, is_overdue=left_s is not None and left_s <= OVERDUE_WITHIN_S)


class _Peer:
    __slots__ = ("flow", "pending", "tenants")

    def __init__(self) -> None:
        self.flow = Flow()
        self.pending = 0
        self.tenants: Counter[str] = Counter()
        """Pending calls of each tenant that has any."""

    def left(self, tenant: str) -> None:
        """A call of the tenant has ended."""
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]


class PendingAnswer:
    """The outcome of one call, which an rpc awaits."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def deliver(self, delivery: Delivery) -> None:
        """The outcome has come."""
        if not self.outcome.done() and not isinstance(delivery, DeliverValues):
            self.outcome.set_result(delivery.failure if isinstance(delivery, DeliverFailure) else delivery)
