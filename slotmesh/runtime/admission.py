"""Handlers that are run for those who may call them only.

Purpose: asks the authorizer once an rpc, before anything of its request is parsed; a stream is held to it for as long
as it is open.
Invariants: a stream whose caller is no longer known ends as if the caller had left, but for its status. Handlers that
yield are driven from here, so that there is always a task of ours to be cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any, Final, NoReturn, TypeAlias

import grpc

from slotmesh.errors import Failure
from slotmesh.runtime.duplex import LAST_WRITE_S
from slotmesh.runtime.rpc_times import RpcTimes
from slotmesh.security.authorizer import Admission, Authorizer
from slotmesh.security.rules import Rule
from slotmesh.status import abort

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only

_LAST_WRITE_S: Final = LAST_WRITE_S / 5
"""gRPC ends no rpc while a write is under way: how long one may take that was cancelled."""


def authorised(handler: Handler, rule: Rule, authorizer: Authorizer, times: RpcTimes) -> Handler:
    """The same handler, for those whom the rule allows. What is refused counts in `times`."""
    gate = _Gate(rule, authorizer, times)
    behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    codecs = (handler.request_deserializer, handler.response_serializer)
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler(_once(behavior, gate), *codecs)
        case False, True:
            return grpc.unary_stream_rpc_method_handler(_held(behavior, gate), *codecs)
        case True, False:
            return grpc.stream_unary_rpc_method_handler(_once(behavior, gate), *codecs)
        case _:
            return grpc.stream_stream_rpc_method_handler(_held(behavior, gate), *codecs)


class _Gate:
    """Of one rpc of one server."""

    def __init__(self, rule: Rule, authorizer: Authorizer, times: RpcTimes) -> None:
        self._rule = rule
        self._times = times
        self.authorizer = authorizer

    async def enter(self, context: Context) -> Admission:
        """Returns where the rpc may go on; ends it otherwise."""
        began = perf_counter()
        admission = self.authorizer.admit(self._rule, context)
        if isinstance(admission, Admission):
            return admission
        try:
            return await abort(context, admission)
        finally:
            self._times.ended(self._rule.method, context, began, well=False)


def _once(behavior: Callable[..., Any], gate: _Gate) -> Any:
    async def admitted(request: Any, context: Context) -> Any:
        await gate.enter(context)
        return await behavior(request, context)

    return admitted


def _held(behavior: Callable[..., Any], gate: _Gate) -> Any:
    drive = _written if inspect.isasyncgenfunction(behavior) else _run

    async def admitted(request: Any, context: Context) -> None:
        admission = await gate.enter(context)
        if admission.identity is None:
            await drive(behavior, request, context)
            return
        with gate.authorizer.streams.held(partial(gate.authorizer.lapsed, admission)) as stream:
            try:
                await drive(behavior, request, context)
            except asyncio.CancelledError:
                if stream.failure is None or context.done():
                    raise
                stream.task.uncancel()
            if stream.failure is not None and not context.done():
                await _end(context, stream.failure)

    return admitted


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
