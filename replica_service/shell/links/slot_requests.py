"""Reservations that callers wait for here: one caller each, or several under one request id.

Purpose: a caller that sends the same request id again joins the reservation under way, or gets the granted slot.
Invariants: a reservation is cancelled when the last caller that waits for it has left; a slot under a request id stays
with that id for as long as it is reserved, so that a lost reply loses nothing, and otherwise goes back when its only
caller has left.
Owner: the direct slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from replica_service.convert import Granted
from replica_service.core.slots.slot_table import SlotState
from slotmesh.errors import Failure, Reason
from slotmesh.spec.rules import show

_LEAST_SWEEP = 64


@dataclass(frozen=True, slots=True)
class ReservationTerms:
    """What is asked for. The same request id cannot mean two of them."""

    endpoint: str
    ttl_s: float
    identity: str = ""
    """The name of who asks; empty where nobody was asked who they are."""


class AwaitedReservation:
    """A reservation, the rpcs that wait for it, and its answer."""

    def __init__(self, wish: ReservationTerms, take_back: Callable[[], None]) -> None:
        """`take_back` is called once no rpc waits for it any more; it is answered then."""
        self.wish = wish
        self.answer: Granted | Failure | None = None
        self._take_back = take_back
        self._waiters: set[asyncio.Future[Granted | Failure]] = set()

    def answered(self, answer: Granted | Failure) -> None:
        """It became a slot, or will not."""
        self.answer = answer
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(answer)

    async def wait(self, patience_s: float | None, given_up: Failure) -> Granted | Failure:
        """What it becomes; after `patience_s` seconds `given_up`."""
        if self.answer is not None:
            return self.answer
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Granted | Failure] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if patience_s is None else loop.call_later(patience_s, self._leave, waiter, given_up)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter, given_up)

    def is_over(self, now: float) -> bool:
        """Whether neither a slot is held nor any rpc waits for one."""
        if isinstance(self.answer, Granted):
            slot = self.answer.slot
            return slot.state is not SlotState.RESERVED or now >= slot.expires_at
        return self.answer is not None

    def _leave(self, waiter: asyncio.Future[Granted | Failure], given_up: Failure) -> None:
        if waiter not in self._waiters:
            return
        self._waiters.discard(waiter)
        if not waiter.done():
            waiter.set_result(given_up)
        if not self._waiters and self.answer is None:
            self._take_back()


class SlotRequests:
    """Reservations by request id."""

    def __init__(self) -> None:
        self._by_id: dict[str, AwaitedReservation] = {}
        self._sweep_at = _LEAST_SWEEP

    def find(self, request_id: str, wish: ReservationTerms, now: float) -> AwaitedReservation | Failure | None:
        """The reservation of this id; None where there is none, or it is over."""
        found = self._by_id.get(request_id)
        if found is None or found.is_over(now):
            return None
        if found.wish != wish:
            message = f"request_id: {show(request_id)!r} was used for another reservation, which still lives"
            return Failure(reason=Reason.BAD_REQUEST, message=message, metadata={"field": "request_id"})
        return found

    def add(self, request_id: str, reservation: AwaitedReservation, now: float) -> None:
        """Records this reservation under the id."""
        self._by_id[request_id] = reservation
        if len(self._by_id) >= self._sweep_at:
            self._by_id = {each: found for each, found in self._by_id.items() if not found.is_over(now)}
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._by_id))
