"""Rpcs that end with a status leave no reference cycle for the garbage collector.

Purpose: `grpc.aio` ends an rpc by an exception, which the rpc keeps. The exception's traceback refers to the frames
that raised it, and these to the rpc: a cycle of some 40 objects and the core's state of the rpc, 17 KB. A client with
thousands of refused rpcs would fill the memory until a full garbage collection, which stops the process.
Invariants: the exception object stays the same, as `grpc.aio` requires; it loses its traceback only. It is found even
if another exception was raised in its place; a handler that suppresses it keeps it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import grpc

from slotmesh.grpc_internals import is_off

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only

_MOST_CAUSES: Final = 6
"""So deep errors are looked at that an rpc ends by."""


def released(handler: Handler) -> Handler:
    """The same handler, outside of all that could end an rpc."""
    if is_off():
        return handler
    behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    release = (_yielding if inspect.isasyncgenfunction(behavior) else _awaited)(behavior)
    codecs = (handler.request_deserializer, handler.response_serializer)
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler(release, *codecs)
        case False, True:
            return grpc.unary_stream_rpc_method_handler(release, *codecs)
        case True, False:
            return grpc.stream_unary_rpc_method_handler(release, *codecs)
        case _:
            return grpc.stream_stream_rpc_method_handler(release, *codecs)


def _awaited(behavior: Any) -> Any:
    async def release(request: Any, context: Context) -> Any:
        try:
            return await behavior(request, context)
        except (grpc.aio.AbortError, asyncio.CancelledError) as error:
            _forget(error)
            del request, context  # this frame is the first one of its traceback from here on
            raise

    return release


def _yielding(behavior: Any) -> Any:
    async def release(request: Any, context: Context) -> AsyncIterator[Any]:
        responses = behavior(request, context)
        try:
            async with aclosing(responses):
                async for response in responses:
                    yield response
        except (grpc.aio.AbortError, asyncio.CancelledError) as error:
            _forget(error)
            del request, context, responses
            raise

    return release


def _forget(error: BaseException) -> None:
    found = [*_raised_for(error, _MOST_CAUSES)]
    if any(isinstance(each, grpc.aio.AbortError) for each in found):
        for each in found:
            each.__traceback__ = each.__context__ = each.__cause__ = None


def _raised_for(error: BaseException, deep: int) -> Iterator[BaseException]:
    """It, and those that it was raised for."""
    yield error
    if not deep:
        return
    causes = {id(it): it for it in (error.__cause__, error.__context__) if it is not None}
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for each in (*causes.values(), *members):
        yield from _raised_for(each, deep - 1)
