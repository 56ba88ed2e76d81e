"""The link of callers that are connected to the replica itself: brings the engine's answers to the rpcs that wait.

Purpose: to the engine it is one more router, which needs no heartbeats: what is in this process is as fresh as it can
be. Each run id is a call or a reservation of one rpc, which gets its answer at once.
Invariants: an rpc that waits for a run id gets its outcome once; answers for rpcs that have ended are dropped.
Owner: the direct slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from replica_service.convert import Granted, Issuer, SlotAnswer
from replica_service.core.calls import RouterPeer
from replica_service.core.failures import CUT_OFF, ENDED
from slotmesh.errors import Failure
from slotmesh.ids import STREAM_ID_BYTES, new_id

WriteValue = Callable[[bytes, str], Awaitable[object]]
"""Takes a payload and its content type."""


class DirectCall:
    """A call in a slot: its values, and how it ends."""

    def __init__(self) -> None:
        self._values: deque[tuple[bytes, str]] = deque()
        self._failure: Failure | None = None
        self.is_over = False
        """It has ended, whether that was written or not."""
        self._has_come = asyncio.Event()

    def value(self, payload: bytes, content_type: str) -> None:
        """A result: the only one, or one that the handler has yielded."""
        self._values.append((payload, content_type))
        self._has_come.set()

    def over(self, failure: Failure | None) -> None:
        """It has ended, and why it failed, if it did."""
        self._failure = failure
        self.is_over = True
        self._has_come.set()

    async def write(self, write: WriteValue, taken: Callable[[], None]) -> Failure | None:
        """Writes the results as they come, each followed by `taken`; returns why the call failed, if it did."""
        while True:
            await self._has_come.wait()
            self._has_come.clear()
            while self._values:
                await write(*self._values.popleft())
                taken()
            if self.is_over:
                return self._failure


class DirectLink:
    """Takes the place of an outbox. A reservation waits as a function of its answer."""

    def __init__(self, issuer: Issuer) -> None:
        """`issuer` names this replica."""
        self.issuer = issuer
        self.link = RouterPeer(outbox=self, stream_id=new_id(STREAM_ID_BYTES))
        self._calls: dict[int, DirectCall] = {}
        self._reservations: dict[int, Callable[[Granted | Failure], None]] = {}

    def expect_call(self, call: DirectCall) -> int:
        """A new run id, whose answers go to the call."""
        self.link.last_run_id += 1
        self._calls[self.link.last_run_id] = call
        return self.link.last_run_id

    def expect_slot(self, answer: Callable[[Granted | Failure], None]) -> int:
        """A new run id, under which a reservation may wait."""
        self.link.last_run_id += 1
        self._reservations[self.link.last_run_id] = answer
        return self.link.last_run_id

    def forget(self, run_id: int) -> None:
        """The caller has left."""
        self._calls.pop(run_id, None)

    # -- from the engine -------------------------------------------------------------------------------------------

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        del size  # of all of them, bytes
        for run_id, payload in enumerate(payloads, first):
            if (call := self._calls.pop(run_id, None)) is not None:
                call.value(payload, content_type)
                call.over(None)

    def values(self, run_id: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        del size
        if (call := self._calls.get(run_id)) is not None:
            for payload in payloads:
                call.value(payload, content_type)

    def done(self, first: int, count: int) -> None:
        self._over(first, count, None)

    def failed(self, first: int, count: int, failure: Failure) -> None:
        # Routers retry calls that are cut off; these callers would have to do so themselves.
        self._over(first, count, ENDED if failure is CUT_OFF else failure)

    def refused(self, first: int, count: int, failure: Failure) -> None:
        """Fails calls that are handed back: there is no router here that could send them elsewhere."""
        if (answer := self._reservations.pop(first, None)) is not None:
            answer(failure)
        else:
            self._over(first, count, failure)

    def slot_answer(self, op_id: int, answer: SlotAnswer) -> None:
        waiting = self._reservations.pop(op_id, None)
        if waiting is not None and isinstance(answer, Granted | Failure):
            waiting(answer)

    def tell_capacity(self) -> None:
        """Ignored: callers are answered at once whether there is room."""

    def end(self) -> None:
        """The replica ends, whatever still runs."""
        for run_id in list(self._calls):
            self._over(run_id, 1, ENDED)

    def _over(self, first: int, count: int, failure: Failure | None) -> None:
        for run_id in range(first, first + count):
            if (call := self._calls.pop(run_id, None)) is not None:
                call.over(failure)
