"""The values of one call of a handler that yields, between the stream that brings them and the loop that takes them.

Purpose: takes the place of an ordinary call's future, so that correlation, windows and cancels need not know of it.
Invariants: values are taken in the order in which they came, and a failure comes after those before it. Nothing is kept
once the taker has given up. What is here is at most the handler's credit: the handler goes on only as values are taken
and acknowledged.
Owner: the call's part until its outcome is there, and the `ValueStream` that takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from slotmesh.errors import SlotmeshError
from slotmesh.wire.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD

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
