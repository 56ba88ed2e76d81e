"""Slots for callers that are connected to the replica directly.

Purpose: single rpcs with the function of a router's Execute frames, by the same scheduler and executors. To the engine,
`DirectLink` is one more router, without heartbeats: a call of this process is always fresh. Each run id is a call or a
reservation of one rpc.
Invariants: calls of a caller that disconnects are cancelled, waiting or running; a slot that was granted to it
meanwhile is released immediately, unless a request id lets it repeat the request. A caller that repeats a request id
joins the pending reservation, or gets the granted slot. A reservation is cancelled when its last waiting caller
disconnects; a slot under a request id stays with that id while it is reserved, so that a lost response loses nothing.
An rpc gets its outcome once; outcomes for rpcs that have ended are dropped.
Owner: the servicer of slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf

from replica_service.convert.slots import Granted, Issuer, SlotAnswer, SlotReleased, dispatch_of, reservation_run
from replica_service.core.call_metadata import ReplicaCallOptions, SlotState
from replica_service.core.events import ReleaseReceived, RenewalReceived, RunsReceived
from replica_service.core.failures import CUT_OFF, ENDED, EXPIRED, OVERDUE
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.shell.engine import Engine
from slotmesh.calls.request_ids import CallIdentity, ReservationIdentity
from slotmesh.errors import Failure, Reason
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.runtime.clock import Clock
from slotmesh.spec.rules import show

_LEAST_SWEEP = 64


@dataclass(frozen=True, slots=True)
class ReservationTerms:
    """The terms of a reservation. One request id stands for one set of terms."""

    endpoint: str
    ttl_s: float
    identity: str = ""
    """The caller's name; empty if callers are not identified."""


class AwaitedReservation:
    """A reservation, the rpcs that wait for it, and its result."""

    def __init__(self, terms: ReservationTerms, take_back: Callable[[], None]) -> None:
        """`take_back` is called when no rpc waits for a pending reservation any more; it cancels it."""
        self.terms = terms
        self.result: Granted | Failure | None = None
        self._take_back = take_back
        self._waiters: set[asyncio.Future[Granted | Failure]] = set()

    def answered(self, result: Granted | Failure) -> None:
        """Sets the result: a slot or a failure."""
        self.result = result
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(result)

    async def wait(self, timeout_s: float | None, given_up: Failure) -> Granted | Failure:
        """Waits for the result. Returns `given_up` after the timeout."""
        if self.result is not None:
            return self.result
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Granted | Failure] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._leave, waiter, given_up)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter, given_up)

    def is_over(self, now: float) -> bool:
        """Whether the reservation is neither pending nor has a slot that is still reserved."""
        if isinstance(self.result, Granted):
            slot = self.result.slot
            return slot.state is not SlotState.RESERVED or now >= slot.expires_at
        return self.result is not None

    def _leave(self, waiter: asyncio.Future[Granted | Failure], given_up: Failure) -> None:
        if waiter not in self._waiters:
            return
        self._waiters.discard(waiter)
        if not waiter.done():
            waiter.set_result(given_up)
        if not self._waiters and self.result is None:
            self._take_back()


class SlotRequests:
    """Reservations by request id."""

    def __init__(self) -> None:
        self._by_id: dict[str, AwaitedReservation] = {}
        self._sweep_at = _LEAST_SWEEP

    def find(self, request_id: str, terms: ReservationTerms, now: float) -> AwaitedReservation | Failure | None:
        """Returns the reservation of this id; None if there is none, or it is over."""
        found = self._by_id.get(request_id)
        if found is None or found.is_over(now):
            return None
        if found.terms != terms:
            message = f"request_id: {show(request_id)!r} was used for another reservation, which still lives"
            return Failure(reason=Reason.BAD_REQUEST, message=message, metadata={"field": "request_id"})
        return found

    def add(self, request_id: str, reservation: AwaitedReservation, now: float) -> None:
        """Records this reservation under the id."""
        self._by_id[request_id] = reservation
        if len(self._by_id) >= self._sweep_at:
            self._by_id = {each: found for each, found in self._by_id.items() if not found.is_over(now)}
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._by_id))


WriteValue = Callable[[bytes, str], Awaitable[object]]
"""Takes a payload and its content type."""


class DirectCall:
    """A call in a slot: its values, and how it ends."""

    def __init__(self) -> None:
        self._values: deque[tuple[bytes, str]] = deque()
        self._failure: Failure | None = None
        self.is_over = False
        """Whether it has ended; its results may not be written yet."""
        self._has_come = asyncio.Event()

    def value(self, payload: bytes, content_type: str) -> None:
        """Adds a result: the only one, or a yielded value."""
        self._values.append((payload, content_type))
        self._has_come.set()

    def over(self, failure: Failure | None) -> None:
        """Ends the call, with its failure if it failed."""
        self._failure = failure
        self.is_over = True
        self._has_come.set()

    async def write(self, write: WriteValue, taken: Callable[[], None]) -> Failure | None:
        """Writes each result when it arrives, followed by `taken`. Returns the failure of the call, if it failed."""
        while True:
            await self._has_come.wait()
            self._has_come.clear()
            while self._values:
                await write(*self._values.popleft())
                taken()
            if self.is_over:
                return self._failure


class DirectLink:
    """The link and outbox of directly connected callers. A pending reservation is a function that takes its result."""

    def __init__(self, issuer: Issuer) -> None:
        """`issuer` names this replica."""
        self.issuer = issuer
        self.link = RouterPeer(outbox=self, stream_id=new_id(STREAM_ID_BYTES))
        self._calls: dict[int, DirectCall] = {}
        self._reservations: dict[int, Callable[[Granted | Failure], None]] = {}

    def expect_call(self, call: DirectCall) -> int:
        """Returns a new run id, whose outcomes are passed to the call."""
        self.link.last_run_id += 1
        self._calls[self.link.last_run_id] = call
        return self.link.last_run_id

    def expect_slot(self, answer: Callable[[Granted | Failure], None]) -> int:
        """Returns a new run id for a slot operation, whose result is passed to `answer`."""
        self.link.last_run_id += 1
        self._reservations[self.link.last_run_id] = answer
        return self.link.last_run_id

    def forget(self, run_id: int) -> None:
        """Drops outcomes of a call whose caller has disconnected."""
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
        # Routers retry calls that are cut off; these callers must be able to see that the replica ended.
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
        """Ignored: each rpc gets its own response about room."""

    def end(self) -> None:
        """Ends all calls, because the replica ends."""
        for run_id in list(self._calls):
            self._over(run_id, 1, ENDED)

    def _over(self, first: int, count: int, failure: Failure | None) -> None:
        for run_id in range(first, first + count):
            if (call := self._calls.pop(run_id, None)) is not None:
                call.over(failure)


RETRY_DELAY_S = 0.1
"""The suggested delay before another reservation: it is unknown when the next slot is freed."""


class DirectSlots:
    """Submits operations on slots, and awaits their results."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._slots = engine.slots
        self._now = clock.now
        self._line = DirectLink(engine.slots.issuer)
        engine.at_end.append(self._line.end)
        self._requests = SlotRequests()

    async def reserve(
        self, terms: ReservationTerms, timeout_s: float | None, request: ReservationIdentity | None = None
    ) -> Granted | Failure:
        """Waits for a slot. `timeout_s` None: without limit. `request`: None if its caller does not repeat it."""
        request_id = "" if request is None else request.request_id
        found = self._requests.find(request_id, terms, self._now()) if request_id else None
        if isinstance(found, Failure):
            return found
        reservation = found or self._begin(terms, request)
        try:
            answer = await reservation.wait(timeout_s, _no_slot(timeout_s))
        except asyncio.CancelledError:
            if not request_id and isinstance(reservation.result, Granted):
                self.release(reservation.result.slot.secret)
            raise
        if isinstance(answer, Granted):
            return answer if found is None else Granted(answer.slot, self._engine.scheduler.in_use)
        return answer if answer.reason is not Reason.QUEUE_FULL else _later(answer)

    def renew(self, secret: bytes, ttl_s: float) -> Granted | Failure:
        """Restarts the lease of a slot."""
        answers: list[Granted | Failure] = []
        op_id = self._line.expect_slot(answers.append)
        self._engine.post(RenewalReceived(self._line.link, op_id, secret, ttl_s))
        return answers[0]

    def release(self, secret: bytes) -> SlotReleased:
        """Releases a slot if it is still reserved."""
        return self._slots.release(ReleaseReceived(secret))

    async def dispatch(
        self,
        secret: bytes,
        endpoint: str,
        options: ReplicaCallOptions,
        payload: bytes,
        timeout_s: float | None,
        write: WriteValue,
        identity: CallIdentity | None = None,
    ) -> Failure | None:
        """Runs a call in a slot and writes its results. Returns its failure, if it failed.

        `identity`: what identifies the call; None if its caller does not repeat it.
        """
        call, link, now = DirectCall(), self._line.link, self._now()
        run_id = self._line.expect_call(call)
        deadline = inf if timeout_s is None else now + timeout_s
        run = ReplicaRun(link, run_id, [payload], options, endpoint, now, deadline)
        timer = None
        try:
            self._slots.dispatch(dispatch_of(run, secret, identity))
            if timeout_s is not None:
                timer = asyncio.get_running_loop().call_later(timeout_s, self._overdue, call, run)
            return await call.write(write, lambda: self._engine.take(link, (run_id,), (1,)))
        finally:
            if timer is not None:
                timer.cancel()
            if not call.is_over:
                self._take_back(run)

    def _overdue(self, call: DirectCall, run: ReplicaRun) -> None:
        """Ends an overdue call, which a router would do for its calls."""
        if not call.is_over:
            call.over(EXPIRED if run.link.waiting.get(run.key) is run else OVERDUE)
            self._take_back(run)

    def _take_back(self, run: ReplicaRun) -> None:
        self._line.forget(run.first)
        self._engine.cancel(run.link, [(run.first, run.first)])

    def _begin(self, terms: ReservationTerms, request: ReservationIdentity | None) -> AwaitedReservation:
        link, now = self._line.link, self._now()
        reservation = AwaitedReservation(terms, lambda: self._engine.cancel(link, [(op_id, op_id)]))
        op_id = self._line.expect_slot(reservation.answered)
        if request is not None:
            self._requests.add(request.request_id, reservation, now)
        run = reservation_run(link, op_id, terms.endpoint, terms.ttl_s, now, inf, terms.identity)
        run.reservation = request
        self._engine.post(RunsReceived([run]))
        return reservation


def _no_slot(timeout_s: float | None) -> Failure:
    return Failure(
        reason=Reason.NO_SLOT,
        message=f"no slot of this replica came free within {timeout_s or 0:g} s",
        retry_delay_s=RETRY_DELAY_S,
    )


def _later(failure: Failure) -> Failure:
    return Failure(reason=failure.reason, message=failure.message, retry_delay_s=RETRY_DELAY_S)
