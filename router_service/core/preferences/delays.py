"""Delays: calls that wait for a replica that has their model, though another one, which has not, has room.

Purpose: a load lasts as long as many calls, and unloads another model; a permit of a full replica may be free in a
moment. With all permits in use, a call that does not wait for one causes loads of further calls. This is delay
scheduling (Zaharia et al., 2010). How long it lasts is the answer to the ski rental problem: what waiting has cost is
limited by what a load costs.
Invariants: a call is delayed for at most the time of a load, counted from when it first was, and not once it has waited
for half of the time that it may wait; but until its end if its deadline is nearer than the end of a load would be: it
would take a permit, unload another model, and time out. The permits that stay free meanwhile cost at most those of
`LOADS` loads; then the oldest call is sent. A look at the queue delays at most `MAX_DELAYED` runs, and sends the next
one. A call is delayed only if permits of the replica become free within half of the time of a load, as recent calls
took; not if it has an SLO, or if one with an SLO waits behind it; nor if it is a copy for a shadow. Nothing is delayed
while the time of a load is unknown.
Owner: the backend. The sender calls `begin` and `settle` before and after each look at the queue.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from router_service.core.limits.admission import Account
from router_service.core.limits.capacity import KnownReplica
from router_service.core.preferences.affinity import BoundedRing
from router_service.core.queueing.backend_queues import DueQueue, FairQueue
from router_service.core.runs import RouterRun

LOADS: Final = 16
"""That a load costs which unloads another model: the calls of both models wait, and the other one is loaded again."""
LOADS_OF_PLACE: Final = 3
"""The same, if a place for a model is free, as far as is known: another router may have sent a model there."""
MAX_DELAYED: Final = 256
"""Runs that one look at the queue delays: each costs about 10 µs, and the queue is looked at with each event."""
_SLACK_S: Final = 1e-6


class Delays:
    """The delayed calls of one backend."""

    __slots__ = (
        *("_account", "_at", "_delayed", "_idle", "_most", "_spent"),
        *("due", "is_any", "is_delayed", "now", "queue", "ring"),
    )

    def __init__(self, account: Account, queue: FairQueue | DueQueue) -> None:
        """`account`: of what waits for the backend."""
        self._account = account
        self.ring: BoundedRing[Any] | None = None
        """Of the backend's replicas; None until a run states a preference."""
        self.now = 0.0
        """Time of the present event, monotonic seconds."""
        self.queue = queue
        """Of the backend."""
        self.is_delayed = False
        """The newest pick has delayed its run."""
        self.is_any = False
        """A run was delayed at the newest look at the queue, or since."""
        self.due = inf
        """When the first of these delays ends; infinite if no run is delayed."""
        self._delayed = 0
        """The number of runs that were delayed by the newest look at the queue, or since."""
        self._spent = 0.0
        """Permit seconds that were left free by delays, since a call was last sent for that."""
        self._most = inf
        """The least bound of it for a delayed call."""
        self._idle = 0
        """Permits that are left free."""
        self._at = 0.0
        """Until when `_spent` is counted."""

    def delay(self, run: RouterRun, replica: KnownReplica, loads: int) -> bool:
        """Whether the run waits for this replica, which has its model and no room, while another one has room."""
        now, load_s = self.now, replica.load_s
        is_soon = 2 * self._account.service_time.mean_s <= load_s * replica.capacity.max_ongoing
        if not (load_s and is_soon and self.queue.may_delay):
            return False
        if run.options.slo_s is not None or run.shadow_of is not None:
            return False
        run.delayed_at = min(run.delayed_at, now)
        until = ends_at = min(run.useless_at, run.arrived + self._account.max_queue_time_s)
        if run.deadline - now >= load_s:
            until = min(run.delayed_at + load_s, run.arrived + (ends_at - run.arrived) / 2)
        self._count()
        if until <= now or self._delayed >= MAX_DELAYED:
            return False
        if self._spent >= loads * load_s - _SLACK_S:
            self._spent = 0.0
            return False
        self.is_delayed = self.is_any = True
        self._delayed += 1
        self.due, self._most = min(self.due, until), min(self._most, loads * load_s)
        return True

    def begin(self) -> None:
        """The queue is looked at."""
        self.is_any, self.due, self._most = False, inf, inf
        self._delayed = 0

    def settle(self, now: float) -> None:
        """No more calls can be sent now."""
        self.now, self.is_delayed = now, False
        self._count()
        self._idle = min(self._account.calls, self.ring.idle) if self.is_any and self.ring is not None else 0
        if self._idle:
            self.due = min(self.due, now + (self._most - self._spent) / self._idle)

    def _count(self) -> None:
        self._spent += self._idle * (self.now - self._at)
        self._at = self.now
