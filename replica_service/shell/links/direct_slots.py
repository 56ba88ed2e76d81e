"""Slots for callers that are connected to the replica itself.

Purpose: what routers do by frames of Execute, done by single rpcs, through the same scheduler and executors.
Invariants: the calls of a caller that leaves are cancelled, waiting or running; a slot that was granted to it meanwhile
is released at once, unless a request id lets it ask again.
Owner: the servicer of slots.
"""

from __future__ import annotations

import asyncio
from math import inf

from replica_service.convert import Granted, SlotReleased, reservation_run
from replica_service.core.call_options import ReplicaCallOptions
from replica_service.core.calls import ReplicaRun
from replica_service.core.events import DispatchCame, RenewalCame, RunsCame
from replica_service.core.failures import EXPIRED, OVERDUE
from replica_service.shell.engine import Engine
from replica_service.shell.links.direct_link import DirectCall, DirectLink, WriteValue
from replica_service.shell.links.slot_requests import AwaitedReservation, ReservationTerms, SlotRequests
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock

RETRY_DELAY_S = 0.1
"""When to ask again for a slot: it is not known when the next one comes free."""


class DirectSlots:
    """Submits operations on slots, and awaits what becomes of them."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._slots = engine.slots
        self._now = clock.now
        self._line = DirectLink(engine.slots.issuer)
        engine.at_end.append(self._line.end)
        self._requests = SlotRequests()

    async def reserve(self, wish: ReservationTerms, patience_s: float | None, request_id: str) -> Granted | Failure:
        """A slot, as soon as there is one; None means to wait as long as it takes."""
        found = self._requests.find(request_id, wish, self._now()) if request_id else None
        if isinstance(found, Failure):
            return found
        reservation = found or self._begin(wish, request_id)
        try:
            answer = await reservation.wait(patience_s, _no_slot(patience_s))
        except asyncio.CancelledError:
            if not request_id and isinstance(reservation.answer, Granted):
                self._slots.release(reservation.answer.slot.secret)
            raise
        if isinstance(answer, Granted):
            return answer if found is None else Granted(answer.slot, self._engine.scheduler.in_use)
        return answer if answer.reason is not Reason.QUEUE_FULL else _later(answer)

    def renew(self, secret: bytes, ttl_s: float) -> Granted | Failure:
        """A new lease from now on."""
        answers: list[Granted | Failure] = []
        op_id = self._line.expect_slot(answers.append)
        self._engine.post(RenewalCame(self._line.link, op_id, secret, ttl_s))
        return answers[0]

    def release(self, secret: bytes) -> SlotReleased:
        """Gives a slot back, if it is still reserved."""
        return self._slots.release(secret)

    async def dispatch(
        self,
        secret: bytes,
        endpoint: str,
        options: ReplicaCallOptions,
        payload: bytes,
        patience_s: float | None,
        write: WriteValue,
    ) -> Failure | None:
        """Runs a call in a slot and writes its results; returns why it failed, if it did."""
        call, link, now = DirectCall(), self._line.link, self._now()
        run_id = self._line.expect_call(call)
        deadline = inf if patience_s is None else now + patience_s
        run = ReplicaRun(link, run_id, [payload], options, endpoint, now, deadline)
        timer = None
        try:
            self._engine.post(DispatchCame(run, secret))
            if patience_s is not None:
                timer = asyncio.get_running_loop().call_later(patience_s, self._overdue, call, run)
            return await call.write(write, lambda: self._engine.take(link, (run_id,), (1,)))
        finally:
            if timer is not None:
                timer.cancel()
            if not call.is_over:
                self._take_back(run)

    def _overdue(self, call: DirectCall, run: ReplicaRun) -> None:
        """No router is there that would see to deadlines of calls that run."""
        if not call.is_over:
            call.over(EXPIRED if run.link.waiting.get(run.key) is run else OVERDUE)
            self._take_back(run)

    def _take_back(self, run: ReplicaRun) -> None:
        self._line.forget(run.first)
        self._engine.cancel(run.link, [(run.first, run.first)])

    def _begin(self, wish: ReservationTerms, request_id: str) -> AwaitedReservation:
        link, now = self._line.link, self._now()
        reservation = AwaitedReservation(wish, lambda: self._engine.cancel(link, [(op_id, op_id)]))
        op_id = self._line.expect_slot(reservation.answered)
        if request_id:
            self._requests.add(request_id, reservation, now)
        run = reservation_run(link, op_id, wish.endpoint, wish.ttl_s, now, inf, wish.identity)
        self._engine.post(RunsCame([run]))
        return reservation


def _no_slot(patience_s: float | None) -> Failure:
    return Failure(
        reason=Reason.NO_SLOT,
        message=f"no slot of this replica came free within {patience_s or 0:g} s",
        retry_delay_s=RETRY_DELAY_S,
    )


def _later(failure: Failure) -> Failure:
    return Failure(reason=failure.reason, message=failure.message, retry_delay_s=RETRY_DELAY_S)
