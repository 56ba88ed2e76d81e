"""Broadcasts: each an rpc with a caller of its own, which gets the outcome of each replica as it comes.

Invariants: at most `MAX_BROADCASTS` at a time, of which one peer may have as many as it leaves; more are refused before
they cost anything. A caller that disconnects cancels its calls; those that were not sent never are. A client that reads
slowly holds the calls back that were not sent.
Owner: the router's servicer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Final, TypeAlias

from router_service import convert
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.features.broadcasts import BroadcastClosed, BroadcastOutcomesTaken, BroadcastRequested
from router_service.core.limits.capacity import KnownReplica
from router_service.core.runs import Caller
from router_service.shell.clients.unary import TimeLeft, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.server.call_values import failed, put_output
from slotmesh.status import to_wire
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import router_service_pb2

MAX_BROADCASTS: Final = 16
DEADLINE_S: Final = 60.0
"""Of a broadcast without a timeout, whose rpc has no deadline either."""
_THRESHOLD: Final = DynamicThreshold()
_RETURN_LESS: Final = "a broadcast has no larger results, so return less, or write it where the caller can read it"

BroadcastOutcome: TypeAlias = tuple[bytes, str] | Failure
"""Payload and content type of a result, or the failure."""


class BroadcastParts:
    """The responses of one broadcast, as its client gets them."""

    def __init__(
        self,
        request: router_service_pb2.BroadcastRequest,
        write: Callable[[router_service_pb2.BroadcastResponse], Awaitable[object]],
        turns: StepQueue,
        noted: Callable[[Failure], Failure],
    ) -> None:
        """Large JSON results are made in `turns`. `noted`: logs a failure that the client gets."""
        self._request = request
        self._write = write
        self._turns = turns
        self._noted = noted

    async def targets(self, targets: Sequence[KnownReplica]) -> None:
        """Writes which replicas are called."""
        response = router_service_pb2.BroadcastResponse()
        for each in targets:
            response.targets.add(replica_id=each.replica_id, backend=each.backend_name)
        await self._write(response)

    async def outcome(self, replica: KnownReplica, outcome: BroadcastOutcome) -> None:
        """Writes what came of the call of this replica."""
        response = router_service_pb2.BroadcastResponse(replica_id=replica.replica_id, backend=replica.backend_name)
        if not isinstance(outcome, Failure):
            failure = await put_output(response, self._request, *outcome, self._turns)
        else:
            failure = failed(outcome, self._request)
        if failure is not None:
            response.failure.CopyFrom(to_wire(self._noted(failure)))
        await self._write(response)


class BroadcastRpc:
    """One broadcast: writes its replicas to the client, then each outcome. Receives what the scheduler delivers."""

    def __init__(self) -> None:
        self._targets: Sequence[KnownReplica] | None = None
        self._refusal: Failure | None = None
        self._outcomes: deque[tuple[int, BroadcastOutcome]] = deque()
        self._has_come = asyncio.Event()

    def deliver_targets(self, targets: Sequence[KnownReplica]) -> None:
        self._targets = targets
        self._has_come.set()

    def deliver(self, delivery: Delivery) -> None:
        match delivery:
            case DeliverFailure(failure=failure) if self._targets is None:
                self._refusal = failure
            case DeliverFailure(ids=ids, failure=failure):
                self._outcomes.extend((each, failure) for each in ids)
            case DeliverResults(ids=ids, payloads=payloads, content_type=content_type):
                for each, payload in zip(ids, payloads, strict=True):
                    size = len(payload)
                    result = (joined(payload), content_type)
                    fits = size <= MAX_INLINE_BYTES
                    self._outcomes.append((each, result if fits else convert.result_too_large(size, _RETURN_LESS)))
            case DeliverDone(ids=ids) | DeliverValues(ids=ids):  # neither is requested
                self._outcomes.extend((each, (b"", "")) for each in ids)
        self._has_come.set()

    async def run(self, taken: Callable[[Sequence[int]], object], parts: BroadcastParts) -> Failure | None:
        """Writes until each replica has its outcome; returns why there are no calls, if they were refused."""
        await self._has_come.wait()
        if self._targets is None:
            return self._refusal
        targets = self._targets
        await parts.targets(targets)
        for _ in targets:
            while not self._outcomes:
                self._has_come.clear()
                await self._has_come.wait()
            number, outcome = self._outcomes.popleft()
            await parts.outcome(targets[number - 1], outcome)
            taken((number,))
        return None


class ClientBroadcasts:
    """All broadcasts of clients."""

    def __init__(self, dispatcher: Dispatcher, unary: UnaryCalls) -> None:
        """Shares flows and bounds with `unary` calls."""
        self._dispatcher = dispatcher
        self._unary = unary
        self._peers: Counter[str] = Counter()
        """Broadcasts of each peer that has any."""

    async def run(
        self,
        peer: str,
        *,
        endpoint: str,
        backend: str,
        options: RouterCallOptions,
        payload: bytes,
        parts: BroadcastParts,
        trace: TraceContext | None,
        time_left: TimeLeft,
    ) -> Failure | None:
        """One broadcast, to its end; returns why there was none."""
        if options.timeout_s == inf:
            left_s = time_left()
            options = replace(options, timeout_s=DEADLINE_S if left_s is None else left_s)
        if failure := self._full(peer) or self._unary.full(len(payload), peer=peer, tenant=options.tenant):
            return failure
        broadcast = BroadcastRpc()
        self._peers[peer] += 1
        try:
            with self._unary.under_way(
                peer, broadcast, len(payload), tenant=options.tenant, time_left=time_left
            ) as caller:
                spans, clock = self._dispatcher.traces, self._dispatcher.clock
                if spans is not None:
                    trace = spans.broadcast_arrived(caller, endpoint, options.method, trace, clock.now())
                try:
                    self._dispatcher.post(BroadcastRequested(caller, endpoint, options, payload, backend, trace))
                    failure = await broadcast.run(lambda ids: self._taken(caller, ids), parts)
                    if spans is not None:
                        spans.broadcast_ended(caller, failure, clock.now())
                    return failure
                finally:
                    self._dispatcher.post(BroadcastClosed(caller))
        finally:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def _taken(self, caller: Caller, ids: Sequence[int]) -> None:
        self._dispatcher.post(BroadcastOutcomesTaken(caller, ids))

    def _full(self, peer: str) -> Failure | None:
        count, held = self._peers.total(), self._peers.get(peer, 0)
        if _THRESHOLD.allows(held + 1, MAX_BROADCASTS - count - 1):
            return None
        return Failure(
            reason=Reason.QUEUE_FULL,
            message=(
                f"{count} broadcasts are under way, {held} of them of this client; this router takes {MAX_BROADCASTS},"
                " and of one client as many as it leaves; try again later"
            ),
            retry_delay_s=1.0,
        )
