"""The values of one call of a handler that yields, between the stream that delivers them and the loop that reads them.

Purpose: `CallValues` replaces an ordinary call's future, so that correlation, windows and cancels are the same;
`RpcValues` are those of a call with an rpc of its own. A `ValueStream` reads either.
Invariants: values are read in the order in which they arrived, and a failure after those before it. Nothing is kept
once the reader has given up. A failure after a value states that the call was executed. At most the handler's credit is
buffered: the handler continues only as values are read and acknowledged.
Owner: the call's part until its outcome arrives, and the `ValueStream` that reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.routers import CLOSED, MAY_HAVE_RUN, is_cancelled_here
from slotmesh.errors import Executed, Failure, SlotmeshError
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD
from slotmesh.v1 import call_pb2

TAKE_VALUES: Final = MAX_VALUES_AHEAD // 2
TAKE_BYTES: Final = MAX_BYTES_AHEAD // 2
"""Values are acknowledged to the router when either is reached: half of what a handler may be ahead."""


class ReadValues:
    """The calls with values that were read, until these are acknowledged to the router, in groups. Of one stream."""

    __slots__ = ("_wake", "unacknowledged")

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when `take_frame` may have a frame."""
        self._wake = wake
        self.unacknowledged: dict[CallValues, None] = {}
        """Calls to be acknowledged by the next `take_frame`."""

    def taken(self, values: CallValues) -> None:
        """The application has read enough values of this call to acknowledge them."""
        self.unacknowledged[values] = None
        self._wake()

    def take_frame(self) -> call_pb2.TakeItems | None:
        """The values that were read and not yet acknowledged, by call; None if there are none."""
        if not self.unacknowledged:
            return None
        taken, self.unacknowledged = self.unacknowledged, {}
        counts = {values.call_id: count for values in taken if (count := values.tell())}
        return call_pb2.TakeItems(call_ids=counts.keys(), counts=counts.values()) if counts else None


class CallValues:
    """Filled by a `RouterLink`, emptied by one iterator."""

    __slots__ = ("_arrived", "_failure", "_over", "_router", "_untold", "_untold_bytes", "_waiter", "call_id")

    def __init__(self) -> None:
        self._arrived: deque[bytes] = deque()
        self._failure: SlotmeshError | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self._router: ReadValues | None = None
        """Acknowledges values to the router; None before the first value."""
        self._untold = 0
        """Values that were read, and not acknowledged yet."""
        self._untold_bytes = 0
        self.call_id = 0
        """0 before the first value."""

    # -- what a call's future does ---------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether no more values are wanted: the call has ended, or its iterator was given up."""
        return self._over

    def set_result(self, _nothing: None) -> None:
        """The call has succeeded."""
        self._over = True
        self._tell_taker()

    def set_exception(self, failure: SlotmeshError) -> None:
        """The call has failed, or its values cannot be decoded: the iterator raises after the buffered values."""
        self._failure = _after_values(failure) if self.call_id else failure
        self.set_result(None)

    def exception(self) -> SlotmeshError | None:
        """The failure, unless it was raised already."""
        return self._failure

    # -- in --------------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, call_id: int, router: ReadValues) -> None:
        """The next value."""
        self._arrived.append(payload)
        self._router, self.call_id = router, call_id
        self._tell_taker()

    def put_last(self, payload: bytes) -> None:
        """Adds the last value, with which the call has succeeded."""
        self._arrived.append(payload)
        self.set_result(None)

    # -- out -------------------------------------------------------------------------------------------------------

    @property
    def has_next(self) -> bool:
        """Whether `take` returns a value without waiting."""
        return bool(self._arrived)

    async def take(self) -> bytes:
        """The next value; waits for it. For one reader at a time.

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
        """The number of values read since the last call of this; 0 if the call needs no more credit."""
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


class ValuesRpc(Protocol):
    """What a call whose values come by an rpc of its own belongs to: it knows what its failures mean."""

    def failure_of(self, error: grpc.RpcError) -> Failure:
        """The failure of the call."""

    def cut_off(self) -> Failure:
        """The failure of an rpc that was cancelled, but not by its caller."""

    def ended(self, failure: Failure | None, *, cut_off: bool) -> None:
        """The call has ended: with its last value, with a failure, or `cut_off` because its reader gave it up."""

    def error(self, failure: Failure) -> SlotmeshError:
        """The exception of a failure."""


ValuesCall = grpc.aio.UnaryStreamCall[Any, Any]


class RpcValues:
    """The values of a call with an rpc of its own. As `CallValues`, for a `ValueStream`.

    Invariants: if the reader gives up before the handler ends, the rpc is cancelled, in any state.
    """

    __slots__ = ("__weakref__", "_call", "_has_begun", "_is_over", "_loop", "_rpc")

    has_next = False

    def __init__(self, call: asyncio.Task[ValuesCall | Failure] | ValuesCall, rpc: ValuesRpc) -> None:
        """`call`: a task if its connection is still to be made."""
        self._call = call
        self._rpc = rpc
        self._loop = asyncio.get_running_loop()
        self._has_begun = False
        """Whether a value has arrived."""
        self._is_over = False

    async def take(self) -> bytes:
        """As `CallValues.take`."""
        if self._is_over:
            raise StopAsyncIteration
        try:
            outcome = await self._next()
        except asyncio.CancelledError:
            if is_cancelled_here():
                raise
            outcome = CLOSED if isinstance(self._call, asyncio.Task) else self._rpc.cut_off()  # a task has sent nothing
        if isinstance(outcome, bytes):
            self._has_begun = True
            return outcome
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True
        self._rpc.ended(outcome, cut_off=False)
        if outcome is None:
            raise StopAsyncIteration
        error = self._rpc.error(outcome)
        raise _after_values(error) if self._has_begun else error

    def give_up(self) -> None:
        """Cancels the call, unless it has ended. Safe in a finalizer, and in any thread."""
        if not self._is_over:
            self._is_over = True
            with suppress(RuntimeError):  # the loop is closed, and the rpc with it
                self._loop.call_soon_threadsafe(_cancel, self._call, self._rpc, self._has_begun)

    close = give_up

    def cancel_rpc(self) -> None:
        """Cancels the rpc, as the client is closed: who reads gets `cut_off`. gRPC itself cancels only what is read."""
        if not self._is_over:
            _cancel_rpc(self._call)

    async def _next(self) -> bytes | Failure | None:
        """The next value, the failure, or None after the last one."""
        if isinstance(self._call, asyncio.Task):
            opened = await self._call
            if isinstance(opened, Failure):
                return opened
            self._call = opened
        try:
            response: Any = await self._call.read()
        except grpc.RpcError as error:
            return self._rpc.failure_of(error)
        if response is grpc.aio.EOF:
            return None
        payload: bytes = response.payload
        return payload


def _cancel(call: asyncio.Task[ValuesCall | Failure] | ValuesCall, rpc: ValuesRpc, has_begun: bool) -> None:
    """Has no reference to the values, which may be being finalized."""
    _cancel_rpc(call)
    rpc.ended(None, cut_off=not has_begun)


def _cancel_rpc(call: asyncio.Task[ValuesCall | Failure] | ValuesCall) -> None:
    if isinstance(call, asyncio.Task) and call.done():
        if not call.cancelled() and not isinstance(opened := call.result(), Failure):
            opened.cancel()
    else:
        call.cancel()


def _after_values(error: SlotmeshError) -> SlotmeshError:
    """The failure of a call of which values have arrived: it is known to have been executed."""
    if error.executed is Executed.UNKNOWN:
        error.executed = Executed.YES
        error.args = (f"{error.args[0].removesuffix(MAY_HAVE_RUN)}; some values of the call had arrived",)
    return error


ResultT = TypeVar("ResultT")


class ValueStream(AsyncIterator[ResultT], Generic[ResultT]):
    """The values of one call: `async for value in digits.explain.stream(pixels)`.

    The handler runs ahead of the loop by 256 values or 1 MiB at most, and waits then. Leaving the loop cancels the
    call; if the iterator is kept after that, use `aclose`, or `async with`.

    Iterating raises SlotmeshError if the call failed, DecodeError if a value is not of the requested type, and
    RuntimeError if another task waits for the next value already.

    Invariants: the call is made when the iterator is created. If the iteration ends before the handler does (`break`,
    `aclose`, an exception, a cancelled task, the garbage collector), the call is cancelled. A value that cannot be
    decoded ends the iteration, too. Owner: the application; one task at a time.
    """

    __slots__ = ("__weakref__", "_is_asked", "_spec", "_values")

    def __init__(self, spec: CallSpec, values: CallValues | RpcValues) -> None:
        self._spec = spec
        self._values = values
        self._is_asked = False

    async def __anext__(self) -> ResultT:
        if self._is_asked:
            raise RuntimeError("another task waits for the next value")
        self._is_asked = True
        try:
            value: ResultT = self._spec.result_of(await self._values.take())
            return value
        except BaseException:
            self._values.give_up()
            raise
        finally:
            self._is_asked = False

    @property
    def has_next(self) -> bool:
        """Whether the next value has arrived, so that reading it does not wait."""
        return self._values.has_next

    async def aclose(self) -> None:
        """Cancels the call, unless it has ended: its handler is closed where it waits. There are no more values."""
        self._values.close()

    async def __aenter__(self) -> ValueStream[ResultT]:
        return self

    async def __aexit__(self, _kind: object, _error: object, _trace: object) -> None:
        self._values.close()

    def __del__(self) -> None:
        self._values.give_up()

    def __repr__(self) -> str:
        return f"<slotmesh values of {self._spec.endpoint}.{self._spec.method}>"
