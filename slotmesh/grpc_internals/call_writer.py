"""Writes to a stream that this process has opened, and keeps the peer's status if the stream ends.

Purpose: if a stream ends during a write, `grpc.aio` reports the status INTERNAL, "Internal error from Core", and drops
the peer's status, such as a refusal with its message, or UNIMPLEMENTED. Here a failed write waits for the peer's
status, which follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.grpc_internals import is_off
from slotmesh.streams.spliced_frames import whole

FrameT = TypeVar("FrameT", bound=Message)

_NOT_BEGUN: Final = "Failed grpc_call_start_batch"
"""How gRPC's error begins where it has not tried to send: no status follows."""


def writer_of(call: grpc.aio.StreamStreamCall[FrameT, Any]) -> Callable[[FrameT], Coroutine[Any, Any, None]]:
    """What writes to the call as its own `write` does. It does not depend on the task in which it runs.

    It raises AioRpcError, with the true status, where the rpc has failed, InvalidStateError where it had ended, and
    grpc.aio.InternalError where a write is under way, or the stream half-closed.
    """
    rpc: Any = getattr(call, "_cython_call", None)
    if rpc is None or is_off():  # without it: a call of another make, as an interceptor's
        return lambda frame: call.write(whole(frame))
    send = rpc.send_serialized_message
    is_started = False

    async def write(frame: FrameT) -> None:
        nonlocal is_started
        if not is_started:
            await call.wait_for_connection()
            is_started = True
        if call.done():
            raise asyncio.InvalidStateError("the stream has ended")
        try:
            await send(frame.SerializeToString())
        except cygrpc.ExecuteBatchError as error:
            if str(error).startswith(_NOT_BEGUN):
                raise
            await _raise_status(call)
        except asyncio.CancelledError:
            call.cancel()
            raise

    return write


async def _raise_status(call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
    """Raises the status of the rpc, except OK: the reader of the stream sees an orderly end."""
    code = await call.code()
    if call.cancelled():
        raise asyncio.CancelledError
    if code.value[0]:  # not OK
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
        )
