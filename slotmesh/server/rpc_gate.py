"""The edge of a server: authorises rpcs before their handlers run, and enforces quotas per caller.

Purpose: authorises each rpc once, before its request is parsed, and again while its stream is open. Counts the streams
of each caller, and the rate of its changes of the configuration.
Invariants: a stream whose authorisation lapses ends as if the client had cancelled it, except for its status. Handlers
that are generators run in a task of the edge, so that they can be cancelled.
Owner: the server, on its event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from opentelemetry.metrics import Meter

from slotmesh.errors import Failure
from slotmesh.security.audit import AUDIT
from slotmesh.security.authentication import Admission, Authorizer
from slotmesh.security.identity import Role, quota_name
from slotmesh.security.quotas import Quota, QuotaKind, RateQuota
from slotmesh.security.rpc_roles import Rule
from slotmesh.status import abort
from slotmesh.streams.limits import DEFAULT_LIMITS, EdgeLimits
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.transport.duplex import LAST_WRITE_S
from slotmesh.transport.open_streams import OpenStreams, StreamCut

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic only in its stubs

_LAST_WRITE_S: Final = LAST_WRITE_S / 5
"""The limit of a cancelled write: gRPC does not end an rpc during a write."""
_OF_OPERATORS: Final = (Role.OPERATOR,)
"""Rpcs that only these roles may call change the configuration."""


class Edge:
    """Authorisation and quotas of one server."""

    def __init__(
        self, times: RpcTimes, authorizer: Authorizer | None = None, limits: EdgeLimits = DEFAULT_LIMITS
    ) -> None:
        """Refused rpcs are counted in `times`. `authorizer` admits rpcs; None: no authentication."""
        self.times = times
        self.authorizer = authorizer
        self.streams = OpenStreams(
            opening_timeout_s=limits.opening_timeout_s, idle_timeout_s=limits.stream_idle_timeout_s
        )
        """Open streams per caller."""
        self.stream_quota = Quota(QuotaKind.STREAMS, limits.max_streams_per_caller, "max_streams_per_caller")
        self.change_quota: RateQuota | None = None
        """The rate of changes per caller; None: unlimited."""

    def admit(self, rule: Rule, context: Context) -> Admission | Failure:
        """Admits an rpc, or returns the failure."""
        if self.authorizer is None:
            return Admission(rule, None)
        admission = self.authorizer.admit(rule, context)
        if self.change_quota is not None and rule.roles == _OF_OPERATORS and isinstance(admission, Admission):
            return self.change_quota.take(quota_name(), monotonic()) or admission
        return admission

    def lapsed(self, admission: Admission) -> Failure | None:
        """Why an admitted rpc must end, recorded in the audit log; None if it may continue."""
        if self.authorizer is None or (failure := self.authorizer.lapsed(admission)) is None:
            return None
        identity = None if admission.credential is None else admission.credential.identity
        AUDIT.denied(identity, admission.rule.method, failure, why=f"its stream ends: {failure.message}")
        return failure


def admitted(handler: Handler, rule: Rule, edge: Edge) -> Handler:
    """The handler, behind the edge with this rule."""
    behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    codecs = (handler.request_deserializer, handler.response_serializer)
    gate = _Gate(rule, edge)
    match handler.request_streaming, handler.response_streaming:
        case True, True:
            return grpc.stream_stream_rpc_method_handler(_held(behavior, gate, reads=True), *codecs)
        case _ if edge.authorizer is None:
            return handler
        case False, False:
            return grpc.unary_unary_rpc_method_handler(_once(behavior, gate), *codecs)
        case False, True:
            return grpc.unary_stream_rpc_method_handler(_held(behavior, gate, reads=False), *codecs)
        case _:
            return grpc.stream_unary_rpc_method_handler(_once(behavior, gate), *codecs)


class _Gate:
    """The admission of rpcs of one method."""

    def __init__(self, rule: Rule, edge: Edge) -> None:
        self._rule = rule
        self.edge = edge

    async def enter(self, context: Context, quota: Quota | None = None) -> Admission:
        """Admits the rpc, or ends it. It is one more of `quota`, which the caller takes."""
        began = perf_counter()
        admission = self.edge.admit(self._rule, context)
        if isinstance(admission, Admission):
            failure = None if quota is None else quota.refusal(quota_name())
            if failure is None:
                return admission
            admission = failure
        try:
            return await abort(context, admission)
        finally:
            self.edge.times.ended(self._rule.method, context, began, well=False)


def _once(behavior: Callable[..., Any], gate: _Gate) -> Any:
    async def entered(request: Any, context: Context) -> Any:
        await gate.enter(context)
        return await behavior(request, context)

    return entered


def _held(behavior: Callable[..., Any], gate: _Gate, *, reads: bool) -> Any:
    drive = _written if inspect.isasyncgenfunction(behavior) else _run
    edge = gate.edge
    quota = edge.stream_quota

    async def entered(request: Any, context: Context) -> None:
        admission = await gate.enter(context, quota)
        who = quota_name()
        quota.take(who)
        try:
            with edge.streams.held(partial(edge.lapsed, admission), reads=reads, context=context) as stream:
                try:
                    await drive(behavior, request, context)
                except asyncio.CancelledError:
                    if stream.failure is None or context.done():
                        raise
            # Not checked and cancelled a second time: its cleanup may take time.
            if stream.failure is not None and not context.done():
                for _ in range(stream.cancels):
                    stream.task.uncancel()
                await _end(context, stream.failure)
        finally:
            quota.give(who)

    return entered


async def _run(behavior: Callable[..., Any], request: Any, context: Context) -> None:
    await behavior(request, context)


async def _written(behavior: Callable[..., Any], request: Any, context: Context) -> None:
    """Writes what a generator handler yields, as grpc.aio does."""
    async with aclosing(behavior(request, context)) as responses:
        async for response in responses:
            await context.write(response)


async def _end(context: Context, failure: Failure) -> NoReturn:
    await asyncio.sleep(_LAST_WRITE_S)
    await abort(context, failure)


def observe_edge(meter: Meter, edge: Edge, quotas: Iterable[Quota] = ()) -> None:
    """Registers the metrics of open and ended streams, and of quotas. `quotas`: of the service, besides the edge's."""
    held = (edge.stream_quota, *quotas)
    rates = () if edge.change_quota is None else (edge.change_quota,)
    observe_gauge(meter, names.SERVER_STREAMS, lambda: {(): len(edge.streams.open)})
    observe_counter(meter, names.SERVER_STREAM_CUTS, lambda: {(why.value,): edge.streams.cut[why] for why in StreamCut})
    observe_counter(meter, names.QUOTA_REFUSALS, lambda: {(each.kind.value,): each.refused for each in (*held, *rates)})
    observe_gauge(
        meter,
        names.QUOTA_LARGEST,
        lambda: {(each.kind.value,): max(each.held.values(), default=0) / each.most for each in held},
    )
