"""The values of one call of a handler that yields, between the stream that brings them and the loop that takes them.

Purpose: takes the place of an ordinary call's future, so that correlation, windows and cancels need not know of it.
Invariants: values are taken in the order in which they came, and a failure comes after those before it. Nothing is kept
once the taker has given up. What is here is at most the handler's credit: the handler goes on only as values are taken
and acknowledged.
Owner: the call's part until its outcome is there, and the `ValueStream` that takes.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

import grpc

from slotmesh.client.calls.outcomes import refusal_of
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure, Reason, SlotmeshError
from slotmesh.runtime.channels import Dialer
from slotmesh.status import to_exception
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD
from slotmesh.v1 import router_service_pb2

if TYPE_CHECKING:
    from slotmesh.client.calls.call_spec import CallSpec


TAKE_VALUES: Final = MAX_VALUES_AHEAD // 2
TAKE_BYTES: Final = MAX_BYTES_AHEAD // 2
"""Values are acknowledged to the router when either is reached: half of what a handler may be ahead."""


class CreditReceiver(Protocol):
    """Where values come from, and where they are acknowledged."""

    def taken(self, values: CallValues) -> None:
        """So many values of these calls were taken that they should be acknowledged."""


class CallValues:
    """Filled by a `RouterLink`, emptied by one iterator."""

    __slots__ = ("_arrived", "_failure", "_over", "_router", "_untold", "_untold_bytes", "_waiter", "call_id")

    def __init__(self) -> None:
        self._arrived: deque[bytes] = deque()
        self._failure: SlotmeshError | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self._router: CreditReceiver | None = None
        """Acknowledges values to the router; None while none has come."""
        self._untold = 0
        """Values that were taken, and not acknowledged yet."""
        self._untold_bytes = 0
        self.call_id = 0
        """0 while nothing has come."""

    # -- what a call's future does ---------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether nothing more is wanted: the call has ended, or its iterator was given up."""
        return self._over

    def set_result(self, _nothing: None) -> None:
        """The call has ended well."""
        self._over = True
        self._tell_taker()

    def set_exception(self, failure: SlotmeshError) -> None:
        """The call has failed, or its values cannot be decoded: the iterator raises after the values that are here."""
        self._failure = failure
        self.set_result(None)

    def exception(self) -> SlotmeshError | None:
        """The failure that was not taken yet."""
        return self._failure

    # -- in --------------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, call_id: int, router: CreditReceiver) -> None:
        """The next value."""
        self._arrived.append(payload)
        self._router, self.call_id = router, call_id
        self._tell_taker()

    def put_last(self, payload: bytes) -> None:
        """The next value, with which the call has ended well."""
        self._arrived.append(payload)
        self.set_result(None)

    # -- out -------------------------------------------------------------------------------------------------------

    @property
    def has_next(self) -> bool:
        """Whether `take` does not wait, and returns a value."""
        return bool(self._arrived)

    async def take(self) -> bytes:
        """The next value, once it is there. Of one taker at a time.

        Raises: StopAsyncIteration: there are no more. SlotmeshError: the call failed. Raised once.
        """
        while not self._arrived:
            if self._over:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        payload = self._arrived.popleft()
        if not self._over:
            self._untold += 1
            self._untold_bytes += len(payload)
            if (self._untold >= TAKE_VALUES or self._untold_bytes >= TAKE_BYTES) and self._router is not None:
                self._router.taken(self)
        return payload

    def tell(self) -> int:
        """How many values were taken since this was asked last; 0 where the call needs no more credit."""
        untold, self._untold, self._untold_bytes = self._untold, 0, 0
        return 0 if self._over else untold

    def give_up(self) -> None:
        """Gives the call up: its owner finds it `done`. Safe in a finalizer."""
        self._over = True
        self._failure = None
        self._arrived.clear()

    def close(self) -> None:
        """As `give_up`; a task that waits for a value gets the end of the iteration."""
        self.give_up()
        self._tell_taker()

    def _tell_taker(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


# Iterating over the values of a handler that yields.
#
# Purpose: what applications hold of such a call: an async iterator that is closed, left or dropped like any other.
# Invariants: the call was made when the iterator was. Values come in order, then the failure, if there is one. However
# the iteration ends before the handler does (`break`, `aclose`, an exception, a cancelled task, the garbage collector),
# the call is taken back. A value that cannot be decoded ends the iteration, too.
# Owner: the application; one task at a time.

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
