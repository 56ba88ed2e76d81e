"""Iterating over the values of a handler that yields.

Purpose: what applications hold of such a call: an async iterator that is closed, left or dropped like any other.
Invariants: the call was made when the iterator was. Values come in order, then the failure, if there is one. However
the iteration ends before the handler does (`break`, `aclose`, an exception, a cancelled task, the garbage collector),
the call is taken back. A value that cannot be decoded ends the iteration, too.
Owner: the application; one task at a time.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import grpc

from slotmesh.client.stream.rpc_failures import refusal_of
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2

if TYPE_CHECKING:
    from slotmesh.client.calls.call_spec import CallSpec
    from slotmesh.client.values.call_values import CallValues

ResultT = TypeVar("ResultT")

Response = router_service_pb2.CallStreamingResponse
StreamingCall = grpc.aio.UnaryStreamCall[router_service_pb2.CallStreamingRequest, Response]

_CLOSED = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call had ended")


class ValueStream(AsyncIterator[ResultT], Generic[ResultT]):
    """The values of one call: `async for value in digits.explain.stream(pixels)`.

    The handler runs ahead of the loop by 256 values or 1 MiB at most, and waits then. Leaving the loop takes the call
    back; where the iterator lives on after that, `aclose` does, or `async with`.

    Iterating raises SlotmeshError where the call failed, DecodeError where a value is not of the type asked for, and
    RuntimeError where another task waits for the next value already.
    """

    __slots__ = ("__weakref__", "_is_asked", "_spec")

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        self._is_asked = False

    async def __anext__(self) -> ResultT:
        if self._is_asked:
            raise RuntimeError("another task waits for the next value")
        self._is_asked = True
        spec = self._spec
        try:
            payload = await self._take()
            return cast("ResultT", payload if spec.decode is None else spec.decode(payload))
        except DecodeError as error:
            self._give_up()
            raise spec.undecodable(error) from None
        except BaseException:
            self._give_up()
            raise
        finally:
            self._is_asked = False

    @property
    def has_next(self) -> bool:
        """Whether the next value is here already, so that asking for it does not wait."""
        return False

    async def aclose(self) -> None:
        """Takes the call back, unless it has ended: the handler is closed where it stands. There are no more values."""
        self._close()

    async def __aenter__(self) -> ValueStream[ResultT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __del__(self) -> None:
        self._give_up()

    @abstractmethod
    async def _take(self) -> bytes:
        """The next value; raises StopAsyncIteration after the last one."""

    @abstractmethod
    def _give_up(self) -> None:
        """Gives the call up. May be called from any thread, and again."""

    def _close(self) -> None:
        """As `_give_up`; a task that waits for a value gets the end of the iteration."""
        self._give_up()

    def __repr__(self) -> str:
        return f"<slotmesh values of {self._spec.endpoint}.{self._spec.method}>"


class StreamedValues(ValueStream[ResultT]):
    """Of a call that travels with the others."""

    __slots__ = ("_values",)

    def __init__(self, spec: CallSpec, values: CallValues) -> None:
        super().__init__(spec)
        self._values = values

    @property
    def has_next(self) -> bool:
        return self._values.has_next

    async def _take(self) -> bytes:
        return await self._values.take()

    def _give_up(self) -> None:
        self._values.give_up()

    def _close(self) -> None:
        self._values.close()


class RpcValues(ValueStream[ResultT]):
    """Of a call with an rpc of its own."""

    __slots__ = ("_address", "_call", "_dialer", "_is_over", "_loop")

    def __init__(self, spec: CallSpec, call: StreamingCall, address: str, dialer: Dialer) -> None:
        """`address` is where the call went, by `dialer`."""
        super().__init__(spec)
        self._call = call
        self._address = address
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._is_over = False

    async def _take(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            failure = refusal_of(error, self._address, self._dialer)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = _CLOSED  # not this task was cancelled, but the rpc
        else:
            if isinstance(response, Response):
                return response.payload
            self._is_over = True
            raise StopAsyncIteration
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True
        raise to_exception(failure, endpoint=self._spec.endpoint, method=self._spec.method)

    def _give_up(self) -> None:
        self._is_over = True
        if _runs_here(self._loop):
            self._call.cancel()
        else:
            with suppress(RuntimeError):  # the loop has ended, and the rpc with it
                self._loop.call_soon_threadsafe(self._call.cancel)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop's own thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
