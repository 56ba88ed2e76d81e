"""A slot that this client holds, from its grant to its end: used by one call or given back, and renewed until then.

Purpose: the lease is renewed when a third of it has passed, and reports when the slot is no longer usable.
Invariants: a slot is marked as used before anything is awaited, and used once. A slot that is not used is given back
once, by a task of its own, which survives the cancellation of its waiters. It is given back, too, if its call may not
have reached its replica; if it has, that changes nothing. Failures of giving back are reported only to a caller of
`release`: the lease expires by itself.
Owner: the block that the slot was reserved for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.client.calls.call_spec import rpc_timeout_s
from slotmesh.client.slots.client import SlotClient
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2

FINAL: Final = frozenset({Reason.SLOT_UNKNOWN, Reason.SLOT_EXPIRED, Reason.SLOT_USED, Reason.REPLICA_GONE})
"""Failures after which no renewal can succeed."""

_CUT: Final = 0.1
"""A granted lease that is shorter than the requested one by this share, and ends within that share of the slot's
longest life, or within a second, is the last one. Replies contain the remaining time, so all are a little shorter."""

_SHORTEST_PAUSE_S: Final = 0.05
"""Between two attempts."""


class RenewalPlan:
    """When to renew a lease. Pure: has no clock.

    Invariants: a slot lives at most five minutes from its grant. A renewal that failed on its way is retried while the
    lease may last, as one without a reply may have been granted. What the replica replies about the slot is final.
    """

    def __init__(self, now: float, ttl_s: float, lease_s: float) -> None:
        """`ttl_s`: the duration requested, now and at each renewal. `lease_s`: the duration granted now."""
        self._ttl_s = ttl_s
        self._last = now + MAX_LEASE_S
        self.ends = now + lease_s
        """When the lease ends, according to the replies received."""
        self._may_last = self.ends
        """When it ends at the latest, if renewals without a reply were granted."""

    def patience_s(self, now: float) -> float:
        """How long to wait for the reply to a renewal."""
        return self.ends - now if now < self.ends else min(self._ttl_s / 3, max(self._may_last - now, 0.0))

    def after_grant(self, now: float, lease_s: float) -> float | None:
        """When to renew next; None if the lease cannot be extended further."""
        self.ends = self._may_last = now + lease_s
        is_cut = lease_s < (1 - _CUT) * self._ttl_s and self._last - self.ends < max(_CUT * self._ttl_s, 1.0)
        due = now + max(lease_s / 3, _SHORTEST_PAUSE_S)
        return None if is_cut or due >= self._last or self.ends >= self._last else due

    def after_failure(self, now: float, *, is_refused: bool = True) -> float | None:
        """When to retry; None if the lease is over before. Not `is_refused`: it is unknown whether it was granted.

        After the known end of the lease, retries are soon and frequent enough for an unnoticed extension.
        """
        if not is_refused:
            self._may_last = max(self._may_last, min(now + self._ttl_s, self._last))
        due = now + max(min(abs(self.ends - now), self._ttl_s) / 3, _SHORTEST_PAUSE_S)
        return due if due < self._may_last else None


class Renewal:
    """Executes the plan. Sends nothing after `stop`."""

    def __init__(
        self, client: SlotClient, token: str, ttl_s: float, lease_s: float, on_final: Callable[[Failure], object]
    ) -> None:
        """`on_final` is called with the failure when the slot is no longer usable."""
        self._client = client
        self._ttl_s = ttl_s
        self._on_final = on_final
        self._request = slot_service_pb2.RenewSlotRequest(token=token)
        self._request.ttl.FromNanoseconds(round(ttl_s * 1e9))
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        now = self._loop.time()
        self._plan = RenewalPlan(now, ttl_s, lease_s)
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer(self._plan.after_grant(now, lease_s))

    def stop(self) -> None:
        """The slot was used, or given back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _set_timer(self, due: float | None) -> None:
        self._timer = None if due is None else self._loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._task = self._client.start(self._renew(), name="slotmesh-client-renew-slot")

    async def _renew(self) -> None:
        outcome: slot_service_pb2.RenewSlotResponse | Failure
        left_s = self._plan.patience_s(self._loop.time())
        try:
            async with asyncio.timeout(left_s):
                outcome = await self._client.rpcs.again(
                    lambda stub: stub.RenewSlot(self._request, timeout=rpc_timeout_s(left_s))
                )
        except TimeoutError:
            outcome = self._client.rpcs.lost("a renewal was not answered in time")
        now = self._loop.time()
        if not isinstance(outcome, Failure):
            lease_s = outcome.slot.ttl.ToNanoseconds() / 1e9
            self._set_timer(self._plan.after_grant(now, lease_s or self._ttl_s))
        elif outcome.reason in FINAL:
            self._on_final(outcome)
        else:
            self._set_timer(self._plan.after_failure(now, is_refused=outcome.executed is Executed.NO))


RELEASE_S: Final = 2.0
"""The time limit for giving a slot back. After that, its lease expires."""

_NOTHING_HELD: Final = frozenset({Reason.SLOT_UNKNOWN, Reason.SLOT_EXPIRED, Reason.SLOT_USED})
"""Failures that mean that there is no slot to give back."""

_USED: Final = Failure(
    reason=Reason.SLOT_USED, message="a call was made in this slot already; reserve another one for the next call"
)
_GIVEN_BACK: Final = Failure(
    reason=Reason.SLOT_UNKNOWN, message="the slot was given back, or its block was left; reserve another one"
)

ReleaseAnswer = slot_service_pb2.ReleaseSlotResponse | Failure

log = logging.getLogger(__name__)


class _State(Enum):
    RESERVED = auto()
    USED = auto()
    GIVEN_BACK = auto()


class SlotLease:
    """One slot, from its grant to its end."""

    def __init__(self, client: SlotClient, endpoint: str, ttl_s: float, wire: slot_service_pb2.Slot) -> None:
        """`ttl_s`: length of the lease that was requested."""
        self.client = client
        self.endpoint = endpoint
        self.wire = wire
        self._state = _State.RESERVED
        self._failure: Failure | None = None
        """Why the slot is no longer usable, if a renewal has reported it."""
        self._stop_call: Callable[[], object] | None = None
        """Cancels the call that runs in the slot."""
        self._returning: asyncio.Task[ReleaseAnswer] | None = None
        lease_s = wire.ttl.ToNanoseconds() / 1e9 or ttl_s
        self._renewal = Renewal(client, wire.token, ttl_s, lease_s, self._on_final)
        client.giving_back.add(self.give_back)

    # -- a call in the slot ----------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raises the error that a call would fail with, whether it could be sent or not.

        Raises:
            SlotError: the slot was used, given back, or lost.
            RuntimeError: the mesh is closed.
        """
        match self._state:
            case _State.USED:
                raise self.error(_USED)
            case _State.GIVEN_BACK:
                raise self.error(_GIVEN_BACK)
            case _State.RESERVED:
                if self._failure is not None:
                    raise self.error(self._failure)
        self.client.check_open(self.endpoint)

    def use(self) -> None:
        """Marks the slot as used by a call. Raises as `check_usable`."""
        self.check_usable()
        self._end(_State.USED)

    def call_runs(self, stop: Callable[[], object]) -> None:
        """A call has started in the slot; `stop` cancels it."""
        self._stop_call = stop

    def call_ended(self, failure: Failure | None = None, *, cut_off: bool = False) -> None:
        """The call has ended: the slot is free, unless the call never reached it. `cut_off`: the outcome is unknown."""
        self._stop_call = None
        if cut_off or (
            failure is not None and failure.executed is not Executed.YES and failure.reason not in _NOTHING_HELD
        ):
            self._return()

    # -- giving back -----------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Gives the slot back if it was not used. Does not wait for that."""
        if self._state is _State.RESERVED:
            self._end(_State.GIVEN_BACK)
            if self._failure is None or self._failure.reason not in _NOTHING_HELD:
                self._return()

    async def release(self) -> slot_service_pb2.ReleaseSlotResponse:
        """Gives the slot back, if it was not used or given back, and returns the load of its replica.

        Raises:
            SlotmeshError: the load is unknown.
        """
        if self._state is _State.RESERVED:
            self._end(_State.GIVEN_BACK)
        released = await asyncio.shield(self._return(again=True))
        if isinstance(released, Failure):
            raise self.error(released)
        return released

    def end(self, error: BaseException | None) -> None:
        """The block ends; with an exception, a running call is cancelled, as its result is not wanted."""
        self.give_back()
        if error is not None and self._stop_call is not None:
            self._stop_call()
            self._return()

    async def returned(self) -> None:
        """Waits until the slot is given back, if it is to be. A cancelled waiter does not stop that."""
        if self._returning is not None and not self._returning.done():
            await asyncio.shield(self._returning)

    def _return(self, *, again: bool = False) -> asyncio.Task[ReleaseAnswer]:
        if self._returning is None or (again and self._returning.done()):
            self._returning = self.client.start(self._give_back(), name="slotmesh-client-release-slot")
        return self._returning

    async def _give_back(self) -> ReleaseAnswer:
        request = slot_service_pb2.ReleaseSlotRequest(token=self.wire.token)
        released: ReleaseAnswer
        try:
            async with asyncio.timeout(RELEASE_S):
                released = await self.client.rpcs.again(lambda stub: stub.ReleaseSlot(request, timeout=RELEASE_S))
        except TimeoutError:
            released = self.client.rpcs.lost(f"giving the slot back took more than {RELEASE_S:g} s")
        if isinstance(released, Failure):
            log.debug("a slot at %s is left to its lease: %s", self.wire.replica_id, released.message)
        return released

    # -- life ------------------------------------------------------------------------------------------------------

    def error(self, failure: Failure, method: str = "") -> SlotmeshError:
        """The exception of a failure of this slot."""
        facts = {"replica_id": self.wire.replica_id, **failure.metadata}
        return to_exception(replace(failure, metadata=facts), endpoint=self.endpoint, method=method)

    def _on_final(self, failure: Failure) -> None:
        self._failure = failure

    def _end(self, state: _State) -> None:
        self._state = state
        self._renewal.stop()
        self.client.giving_back.discard(self.give_back)

    def __repr__(self) -> str:
        state = self._state.name.lower().replace("_", " ")
        return f"slot of {self.endpoint} at {self.wire.replica_id} ({state})"


async def leave(leases: Sequence[SlotLease], error: BaseException | None) -> None:
    """Ends the block of these slots, with this exception. Failures of giving back do not replace it."""
    for lease in leases:
        lease.end(error)
    try:
        for lease in leases:
            await lease.returned()
    except asyncio.CancelledError:
        if error is None:
            raise
