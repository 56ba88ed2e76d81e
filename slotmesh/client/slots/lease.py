"""A slot that this client holds: what became of it, and that it is given back.

Purpose: the life of a slot at the client: reserved, then used by one call or given back; renewed as long as it is
neither.
Invariants: it is marked as used before anything is awaited, and used once. A slot that is not used is given back, once,
by a task of its own: whoever waits for that may be cancelled. So is one whose call may not have reached its replica;
where it has, that changes nothing. No failure of giving back is heard by anybody who did not ask for it: the lease ends
by itself.
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
from slotmesh.client.slots.terms import Terms
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2

# A lease that is renewed while a block runs.
#
# Purpose: asks for a new lease when a third of the old one is over; says when the slot can be used no more.
# Invariants: no more than five minutes since the slot was granted. Nothing is asked after `stop`. A renewal that failed
# on its way is tried again while the lease may last: one whose reply did not come may have been granted. What the
# replica
# says of the slot is final.
# Owner: the `SlotLease`.

FINAL: Final = frozenset({Reason.SLOT_UNKNOWN, Reason.SLOT_EXPIRED, Reason.SLOT_USED, Reason.REPLICA_GONE})
"""No renewal will help any more."""

_CUT: Final = 0.1
"""A lease that is shorter by this share than what was asked for, and ends within that of the last moment, or a second,
is the last one. Replies tell what is left of a lease, so all are a little shorter."""

_SHORTEST_PAUSE_S: Final = 0.05
"""Between two attempts."""


class RenewalPlan:
    """When to renew. Knows no clock."""

    def __init__(self, now: float, ttl_s: float, lease_s: float) -> None:
        """`ttl_s`: what was asked for, and is asked for again. `lease_s`: what was granted now."""
        self._ttl_s = ttl_s
        self._last = now + MAX_LEASE_S
        self.ends = now + lease_s
        """When the lease ends, as far as is known here."""
        self._may_last = self.ends
        """When it ends at the latest, if renewals were granted whose replies did not come."""

    def patience_s(self, now: float) -> float:
        """How long to wait for the reply to a renewal."""
        return self.ends - now if now < self.ends else min(self._ttl_s / 3, max(self._may_last - now, 0.0))

    def after_grant(self, now: float, lease_s: float) -> float | None:
        """When to renew next; None: never, as there is nothing more to be had."""
        self.ends = self._may_last = now + lease_s
        is_cut = lease_s < (1 - _CUT) * self._ttl_s and self._last - self.ends < max(_CUT * self._ttl_s, 1.0)
        due = now + max(lease_s / 3, _SHORTEST_PAUSE_S)
        return None if is_cut or due >= self._last or self.ends >= self._last else due

    def after_failure(self, now: float, *, is_refused: bool = True) -> float | None:
        """When to try again; None: the lease is over before. Not `is_refused`: nobody knows whether it was granted.

        Once the end that is known has passed, soon, and often enough for a lease that was prolonged unseen.
        """
        if not is_refused:
            self._may_last = max(self._may_last, min(now + self._ttl_s, self._last))
        due = now + max(min(abs(self.ends - now), self._ttl_s) / 3, _SHORTEST_PAUSE_S)
        return due if due < self._may_last else None


class Renewal:
    """Carries the plan out."""

    def __init__(
        self, client: SlotClient, token: str, ttl_s: float, lease_s: float, on_final: Callable[[Failure], object]
    ) -> None:
        """`on_final` hears that the slot can be used no more, and why."""
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
        """The slot is used, or given back."""
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
"""What giving a slot back may take. After that it is left to the lease."""

_NOTHING_HELD: Final = frozenset({Reason.SLOT_UNKNOWN, Reason.SLOT_EXPIRED, Reason.SLOT_USED})
"""Failures after which there is nothing to give back."""

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

    def __init__(self, client: SlotClient, terms: Terms, wire: slot_service_pb2.Slot) -> None:
        self.client = client
        self.endpoint = terms.endpoint
        self.wire = wire
        self._state = _State.RESERVED
        self._failure: Failure | None = None
        """Why the slot is of no use any more, as a renewal has heard."""
        self._stop_call: Callable[[], object] | None = None
        """Takes the call back that runs in the slot."""
        self._returning: asyncio.Task[ReleaseAnswer] | None = None
        lease_s = wire.ttl.ToNanoseconds() / 1e9 or terms.ttl_s
        self._renewal = Renewal(client, wire.token, terms.ttl_s, lease_s, self._on_final)
        client.held.add(self)

    # -- a call in the slot ----------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raises what a call would fail with, sent or not.

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
        """A call is made in the slot from now on. Raises as `check_usable`."""
        self.check_usable()
        self._end(_State.USED)

    def call_runs(self, stop: Callable[[], object]) -> None:
        """The call that uses the slot; `stop` takes it back."""
        self._stop_call = stop

    def call_ended(self, failure: Failure | None = None, *, cut_off: bool = False) -> None:
        """The call has ended: the slot is free, unless the call never got to it. `cut_off`: nobody knows how."""
        self._stop_call = None
        if cut_off or (
            failure is not None and failure.executed is not Executed.YES and failure.reason not in _NOTHING_HELD
        ):
            self._return()

    # -- giving back -----------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Gives the slot back if it was not used. Nobody need wait for that."""
        if self._state is _State.RESERVED:
            self._end(_State.GIVEN_BACK)
            if self._failure is None or self._failure.reason not in _NOTHING_HELD:
                self._return()

    async def release(self) -> slot_service_pb2.ReleaseSlotResponse:
        """Gives the slot back, and says how loaded its replica is. Of a slot that was used or given back: only that.

        Raises:
            SlotmeshError: it could not be said.
        """
        if self._state is _State.RESERVED:
            self._end(_State.GIVEN_BACK)
        released = await asyncio.shield(self._return(again=True))
        if isinstance(released, Failure):
            raise self.error(released)
        return released

    def end(self, error: BaseException | None) -> None:
        """The block ends, with this exception: then nobody wants a call that runs any more."""
        self.give_back()
        if error is not None and self._stop_call is not None:
            self._stop_call()
            self._return()

    async def returned(self) -> None:
        """Waits until it is given back, where it is to be. Whoever is cancelled here changes nothing."""
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
        self.client.held.discard(self)

    def __repr__(self) -> str:
        state = self._state.name.lower().replace("_", " ")
        return f"slot of {self.endpoint} at {self.wire.replica_id} ({state})"


async def leave(leases: Sequence[SlotLease], error: BaseException | None) -> None:
    """The block of these slots ends, with this exception. No failure of what is to be done here takes its place."""
    for lease in leases:
        lease.end(error)
    try:
        for lease in leases:
            await lease.returned()
    except asyncio.CancelledError:
        if error is None:
            raise
