"""The two ways to the slots of a replica: frames of Execute, as routers use them, and its own SlotService.

Invariants: both doors take the same and raise the same, so that one test speaks of both; a task that is cancelled takes
back what it has asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf import duration_pb2

from slotmesh.errors import Executed, Failure
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Slot = slot_service_pb2.Slot


class Failed(Exception):
    """An operation failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.reason}: {failure.message}")
        self.failure = failure

    @property
    def told(self) -> tuple[str, Executed]:
        return self.failure.reason.value, self.failure.executed


class Door(Protocol):
    """What can be done with slots."""

    async def reserve(self, *, ttl_s: float | None = None, timeout_s: float | None = None, **fields: Any) -> Slot: ...

    async def renew(self, token: str, ttl_s: float | None = None) -> Slot: ...

    async def release(self, token: str) -> tuple[int, int]:
        """Returns `ongoing` and `max_ongoing`."""
        ...

    async def dispatch(self, token: str, payload: bytes = b"x", *, endpoint: str = "", **options: Any) -> bytes: ...

    def stream(self, token: str, payload: bytes, *, endpoint: str = "", **options: Any) -> AsyncIterator[bytes]: ...


class FramesDoor:
    """Frames of one stream of a router."""

    def __init__(self, stream: ExecuteStream) -> None:
        self._stream = stream

    async def reserve(self, *, ttl_s: float | None = None, timeout_s: float | None = None, **fields: Any) -> Slot:
        op_id = await self._stream.send_op(reserve=reserve_request(ttl_s, timeout_s, **fields))
        slot: Slot = await self._answer(op_id, lambda: self._stream.slots.get(op_id))
        return slot

    async def renew(self, token: str, ttl_s: float | None = None) -> Slot:
        op_id = await self._stream.send_op(renew=renew_request(token, ttl_s))
        slot: Slot = await self._answer(op_id, lambda: self._stream.slots.get(op_id))
        return slot

    async def release(self, token: str) -> tuple[int, int]:
        op_id = await self._stream.send_op(release=slot_service_pb2.ReleaseSlotRequest(token=token))
        return load_of(await self._answer(op_id, lambda: self._stream.released.get(op_id)))

    async def dispatch(self, token: str, payload: bytes = b"x", *, endpoint: str = "", **options: Any) -> bytes:
        op_id = await self._dispatch(token, payload, endpoint, options)
        return bytes(await self._answer(op_id, lambda: self._stream.results.get(op_id)))

    async def stream(self, token: str, payload: bytes, *, endpoint: str = "", **options: Any) -> AsyncIterator[bytes]:
        op_id = await self._dispatch(token, payload, endpoint, {**options, "streaming": True})
        told = 0
        while True:
            if values := self._stream.values.get(op_id, [])[told:]:
                for value in values:
                    yield value
                    async with self._stream.withdrawing(op_id):
                        await self._stream.take_values(**{f"r{op_id}": 1})
                told += len(values)
            elif op_id in self._stream.done:
                return
            else:
                await self._answer(op_id, partial(self._news, op_id, told))

    def _news(self, op_id: int, told: int) -> bool | None:
        """Whether there is more to say of a call than so many values."""
        return True if op_id in self._stream.done or self._stream.values.get(op_id, [])[told:] else None

    async def _dispatch(self, token: str, payload: bytes, endpoint: str, options: dict[str, Any]) -> int:
        request = slot_service_pb2.DispatchRequest(
            token=token, endpoint=endpoint, payload=payload, options=call_options(**options)
        )
        return await self._stream.send_op(dispatch=request)

    async def _answer(self, op_id: int, find: Callable[[], Any]) -> Any:
        stream = self._stream

        def found() -> tuple[Any] | None:
            failure = stream.failures.get(op_id) or stream.refused.get(op_id)
            answer = find() if failure is None else Failed(from_wire(failure))
            return None if answer is None else (answer,)

        async with stream.withdrawing(op_id):
            await wait_until(lambda: found() or stream.ended, timeout=10.0, what=f"answer to {op_id}")
        if (answer := found()) is None:
            raise AssertionError(f"the stream has ended: {stream.error}")
        if isinstance(answer[0], Failed):
            raise answer[0]
        return answer[0]


class DirectDoor:
    """The replica's own SlotService."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    async def reserve(self, *, ttl_s: float | None = None, timeout_s: float | None = None, **fields: Any) -> Slot:
        response = await _told(self._stub.ReserveSlot(reserve_request(ttl_s, timeout_s, **fields)))
        slot: Slot = response.slot
        return slot

    async def renew(self, token: str, ttl_s: float | None = None) -> Slot:
        response = await _told(self._stub.RenewSlot(renew_request(token, ttl_s)))
        slot: Slot = response.slot
        return slot

    async def release(self, token: str) -> tuple[int, int]:
        return load_of(await _told(self._stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=token))))

    async def dispatch(self, token: str, payload: bytes = b"x", *, endpoint: str = "", **options: Any) -> bytes:
        request = slot_service_pb2.DispatchRequest(
            token=token, endpoint=endpoint, payload=payload, options=call_options(**options)
        )
        return bytes((await _told(self._stub.Dispatch(request))).payload)

    async def stream(self, token: str, payload: bytes, *, endpoint: str = "", **options: Any) -> AsyncIterator[bytes]:
        request = slot_service_pb2.DispatchStreamingRequest(
            token=token, endpoint=endpoint, payload=payload, options=call_options(**options)
        )
        call = self._stub.DispatchStreaming(request)
        try:
            async for response in call:
                yield response.payload
        except grpc.aio.AioRpcError as error:
            raise Failed(from_rpc_error(error)) from error
        finally:
            call.cancel()


OpenDoor = Callable[[RunningReplica], AbstractAsyncContextManager[Door]]


@asynccontextmanager
async def by_frames(replica: RunningReplica) -> AsyncIterator[Door]:
    async with replica.router() as stream:
        yield FramesDoor(stream)


@asynccontextmanager
async def directly(replica: RunningReplica) -> AsyncIterator[Door]:
    async with open_channel(replica.address) as channel:
        yield DirectDoor(channel)


def reserve_request(
    ttl_s: float | None = None, timeout_s: float | None = None, *, endpoint: str = "e", **fields: Any
) -> slot_service_pb2.ReserveSlotRequest:
    """`fields`: those of the request, and of its options."""
    of_options = {name: fields.pop(name) for name in ("ordering_key", "stop_generation") if name in fields}
    request = slot_service_pb2.ReserveSlotRequest(
        endpoint=endpoint, options=call_options(timeout_s=timeout_s, method="", **of_options), **fields
    )
    if ttl_s is not None:
        request.ttl.CopyFrom(seconds(ttl_s))
    return request


def renew_request(token: str, ttl_s: float | None) -> slot_service_pb2.RenewSlotRequest:
    request = slot_service_pb2.RenewSlotRequest(token=token)
    if ttl_s is not None:
        request.ttl.CopyFrom(seconds(ttl_s))
    return request


def call_options(*, timeout_s: float | None = None, method: str = "echo", **options: Any) -> call_pb2.CallOptions:
    wire = wire_options(method=method, **options)
    if timeout_s is not None:
        wire.timeout.CopyFrom(seconds(timeout_s))
    return wire


def seconds(value: float) -> duration_pb2.Duration:
    wire = duration_pb2.Duration()
    wire.FromNanoseconds(round(value * 1e9))
    return wire


def load_of(wire: slot_service_pb2.ReleaseSlotResponse) -> tuple[int, int]:
    return wire.ongoing, wire.max_ongoing


async def _told(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise Failed(from_rpc_error(error)) from error
