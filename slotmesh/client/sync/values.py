"""Iterating over the values of a handler that yields, for threads.

Purpose: an iterator that is closed, left or dropped like any other.
Invariants: values are fetched when they are asked for, never before: those that have come by then, and at most
`FETCHED_VALUES` of them, so that a wait for the client's thread is shared by many. The handler goes on only as they are
fetched: what the client holds of a call is bounded, however slow the loop is.
Owner: the application; one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.values.value_stream import ValueStream

if TYPE_CHECKING:
    from slotmesh.client.sync.client_thread import ClientThread

ResultT = TypeVar("ResultT")

FETCHED_VALUES: Final = 64
"""Values that are fetched at a time."""


class SyncValueStream(Iterator[ResultT], Generic[ResultT]):
    """The values of one call: `for value in digits.explain.stream(pixels)`.

    The handler runs ahead of the loop by 256 values or 1 MiB at most, and waits then. Leaving the loop takes the call
    back; where the iterator lives on after that, `close` does, or `with`.

    Iterating raises SlotmeshError where the call failed, and DecodeError where a value is not of the type asked for.
    """

    __slots__ = ("__weakref__", "_failure", "_fetched", "_over", "_thread", "_values")

    def __init__(self, thread: ClientThread, values: ValueStream[ResultT]) -> None:
        self._thread = thread
        self._values = values
        self._fetched: deque[ResultT] = deque()
        self._failure: Exception | None = None
        """Comes after what was fetched."""
        self._over = False

    def __next__(self) -> ResultT:
        fetched = self._fetched
        while not fetched:
            self._fetch()
        return fetched.popleft()

    def close(self) -> None:
        """Takes the call back, unless it has ended: the handler is closed where it stands. There are no more values."""
        if not self._over:
            self._over = True
            self._thread.go_on(CallFuture(self._thread), self._values.aclose)
        self._fetched.clear()
        self._failure = None

    def __enter__(self) -> SyncValueStream[ResultT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self) -> None:
        """Waits for a value or more; raises StopIteration where there are no more."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._over:
            raise StopIteration
        self._thread.check_may_wait()
        try:
            values = self._thread.outcome_of_more(self._take_some)
        except BaseException:  # also Ctrl-C: that ends the iteration, and takes the call back
            self._over = True
            raise
        self._fetched.extend(values)
        if not values:
            self._over = True
            raise StopIteration

    async def _take_some(self) -> list[ResultT]:
        """In the client's thread."""
        some: list[ResultT] = []
        try:
            async for value in self._values:
                some.append(value)
                if len(some) >= FETCHED_VALUES or not self._values.has_next:
                    break
        except Exception as failure:
            if not some:
                raise
            self._failure, self._over = failure, True
        return some

    def __repr__(self) -> str:
        return repr(self._values)
