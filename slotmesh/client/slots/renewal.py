"""A lease that is renewed while a block runs.

Purpose: asks for a new lease when a third of the old one is over; says when the slot can be used no more.
Invariants: no more than five minutes since the slot was granted. Nothing is asked after `stop`. A renewal that failed
on its way is tried again while the lease may last: one whose reply did not come may have been granted. What the replica
says of the slot is final.
Owner: the `SlotLease`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from slotmesh.client.calls.unary_rpcs import rpc_timeout_s
from slotmesh.client.slots.client import SlotClient
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.slots.limits import MAX_LEASE_S
from slotmesh.v1 import slot_service_pb2

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
