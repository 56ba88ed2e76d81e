"""The edge of a server: handlers are run for those who may call them only, and for as much as these may have.

Purpose: asks who calls once an rpc, before anything of its request is parsed; a stream is held to it for as long as it
is open. Counts the streams of each caller, and how often one changes the configuration.
Invariants: a stream that may not go on ends as if the caller had left, but for its status. Handlers that yield are
driven from here, so that there is always a task of ours to be cancelled.
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
from slotmesh.security.authorizer import Admission, Authorizer
from slotmesh.security.identity import Role, quota_name
from slotmesh.security.permissions import Rule
from slotmesh.security.quotas import Quota, QuotaKind, RateQuota
from slotmesh.status import abort
from slotmesh.streams.limits import DEFAULT_LIMITS, EdgeLimits
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.transport.duplex import LAST_WRITE_S
from slotmesh.transport.open_streams import OpenStreams, StreamCut

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only

_LAST_WRITE_S: Final = LAST_WRITE_S / 5
"""gRPC ends no rpc while a write is under way: how long one may take that was cancelled."""
_OF_OPERATORS: Final = (Role.OPERATOR,)
"""Rpcs that are for them alone change something."""


class Edge:
    """What one server asks of those who come, and has of them."""

    def __init__(
        self, times: RpcTimes, authorizer: Authorizer | None = None, limits: EdgeLimits = DEFAULT_LIMITS
    ) -> None:
        """What is refused counts in `times`. `authorizer` lets rpcs in; None: nobody is asked who they are."""
        self.times = times
        self.authorizer = authorizer
        self.streams = OpenStreams(
            opening_timeout_s=limits.opening_timeout_s, idle_timeout_s=limits.stream_idle_timeout_s
        )
        """Those that are open."""
        self.stream_quota = Quota(QuotaKind.STREAMS, limits.max_streams_per_caller, "max_streams_per_caller")
        self.change_quota: RateQuota | None = None
        """How often one caller may change something; None: as often as it likes."""

    def admit(self, rule: Rule, context: Context) -> Admission | Failure:
        """Lets an rpc in, or says why not."""
        if self.authorizer is None:
            return Admission(rule, None)
        admission = self.authorizer.admit(rule, context)
        if self.change_quota is not None and rule.roles == _OF_OPERATORS and isinstance(admission, Admission):
            return self.change_quota.take(quota_name(), monotonic()) or admission
        return admission

    def lapsed(self, admission: Admission) -> Failure | None:
        """Why an rpc that was let in may not go on, of which the audit log then has a line; None where it may."""
        if self.authorizer is None or (failure := self.authorizer.lapsed(admission)) is None:
            return None
        who = None if admission.credential is None else admission.credential.identity
        AUDIT.denied(who, admission.rule.method, failure, why=f"its stream ends: {failure.message}")
        return failure


def admitted(handler: Handler, rule: Rule, edge: Edge) -> Handler:
    """The same handler, for those whom the edge lets in by this rule."""
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
    """Of one rpc of one server."""

    def __init__(self, rule: Rule, edge: Edge) -> None:
        self._rule = rule
        self.edge = edge

    async def enter(self, context: Context, quota: Quota | None = None) -> Admission:
        """Returns where the rpc may go on; ends it otherwise. It is one more of `quota`, which the caller takes."""
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
            # It is looked at no more, and not cancelled again: its end may take its time.
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
    """As grpc.aio does with what a handler yields."""
    async with aclosing(behavior(request, context)) as responses:
        async for response in responses:
            await context.write(response)


async def _end(context: Context, failure: Failure) -> NoReturn:
    await asyncio.sleep(_LAST_WRITE_S)
    await abort(context, failure)


# The metrics of a server's edge: streams that are open or were ended, quotas and who was refused for them.


def observe_edge(meter: Meter, edge: Edge, quotas: Iterable[Quota] = ()) -> None:
    """Registers them. `quotas`: those of the service, beside the edge's own."""
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
