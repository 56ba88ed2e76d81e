"""The queues of unkeyed runs of one backend: fair between flows and tenants, or ordered by SLO among all callers.

Owner: the backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from router_service.core.calls import Flow
from router_service.core.limits.tenant_limits import TenantAccount
from router_service.core.queueing.run_queues import SloQueue
from router_service.core.runs import RouterRun

Sharer = Flow | TenantAccount | None
"""The unit that a queue takes turns between. None: the calls of a flow that name no tenant."""
TURN_CALLS = 64
"""Calls per turn: enough for full frames, few enough that a caller with one call soon has its turn."""
FEW_CALLS = 8
"""Of the calls of a round, those that may leave ahead of all turns."""
_SWEEP_FROM = 1024


class _Share:
    """One flow's part of the queue, or one tenant's."""

    __slots__ = ("brakes", "credit", "few", "flow", "is_listed", "queue", "round", "tenant")

    def __init__(self, flow: Sharer, number: int, brakes: int) -> None:
        self.flow = flow
        self.queue: SloQueue | FairQueue = SloQueue()
        """A `FairQueue` while calls of several tenants wait."""
        self.tenant: TenantAccount | None = None
        """The tenant whose calls wait, while the queue is a `SloQueue`."""
        self.round = number
        """The round of the credit."""
        self.brakes = brakes
        """Number of ended brakes when it last got credit for one, or joined."""
        self.credit = TURN_CALLS
        """Calls left of the round."""
        self.few = 0
        """Calls left that may leave ahead of all turns."""
        self.is_listed = False
        """It is in one of the queues of waiting flows."""


def _flow_of(run: RouterRun) -> Sharer:
    return run.caller.flow


def _tenant_of(run: RouterRun) -> Sharer:
    return run.tenant


class FairQueue:
    """Deficit round robin (Shreedhar and Varghese, 1995) over the flows that have runs waiting.

    A run can be cut anywhere, so a turn never overdraws by more than one send. A flow with credit left in this round is
    served in it, so a flow with few calls does not wait behind hundreds that have many. While the queue is braked, only
    flows with credit left are served. A flow whose calls name several tenants has a queue of this kind within it, whose
    flows are the tenants: a client gains nothing against others by naming more tenants.
    Invariants: each flow has `TURN_CALLS` calls per round; a waiting flow gets that many before any other has two more
    turns, except that flows with few calls also get them for each brake that has ended. Unused credit expires with the
    round. A flow whose runs were all withdrawn stays until its turn, or until such flows are the majority.
    """

    __slots__ = (
        "_aside",
        "_brakes",
        "_came",
        "_is_of_tenants",
        "_round",
        "_sharer_of",
        "_shares",
        "_sweep_at",
        "_turns",
        "_within",
        "is_braked",
    )

    def __init__(self, sharer_of: Callable[[RouterRun], Sharer] = _flow_of) -> None:
        """`sharer_of`: returns the sharer of a run."""
        self._sharer_of = sharer_of
        self._is_of_tenants = sharer_of is _tenant_of
        self.is_braked = False
        """Only flows that arrive with few calls are served, and no round ends: clients have too many unread results."""
        self._shares: dict[Sharer, _Share] = {}
        """Sharers that wait, or have used credit of this round."""
        self._came: deque[_Share] = deque()
        """Sharers that arrived in this round with few calls, and have credit left: served first."""
        self._turns: deque[_Share] = deque()
        """All others that wait. The first one may have begun its turn."""
        self._aside: list[tuple[deque[_Share], _Share]] = []
        """Sharers that are set aside, and the queue of each."""
        self._within: list[FairQueue] = []
        """Queues of sharers in which some are set aside."""
        self._round = 0
        self._brakes = 0
        """Number of ended brakes."""
        self._sweep_at = _SWEEP_FROM

    def brake(self, *, is_on: bool) -> None:
        """Puts the brake on, or takes it off: flows with few calls have the credit of a turn again.

        A round of hundreds of flows spans many brakes, with little done between two of them. A flow without credit
        would wait all that time, though the queue is idle during most of it.
        """
        was_on, self.is_braked = self.is_braked, is_on
        if not was_on or is_on:
            return
        self._brakes += 1
        turns, self._turns = self._turns, deque()
        for share in turns:
            run = share.queue.head()
            if run is not None and run.waiting <= FEW_CALLS:
                share.credit, share.few, share.brakes = TURN_CALLS, FEW_CALLS, self._brakes
                self._came.append(share)
            else:
                self._turns.append(share)

    def append(self, run: RouterRun) -> None:
        """Queues the newest run of its flow."""
        share = self._share(run)
        queue = share.queue
        if type(queue) is not SloQueue or run.tenant is not share.tenant:
            queue = self._queue_of(share, run)
        queue.append(run)

    def put_back(self, *runs: RouterRun) -> None:
        """Queues runs, oldest first, that are older than others of their flows."""
        by_tenant: dict[tuple[_Share, TenantAccount | None], list[RouterRun]] = {}
        for run in runs:
            by_tenant.setdefault((self._share(run), run.tenant), []).append(run)
        for (share, _), back in by_tenant.items():
            self._queue_of(share, back[0]).put_back(*back)

    def head(self) -> RouterRun | None:
        """The run whose turn it is, or None."""
        for line in (self._came,) if self.is_braked else (self._came, self._turns):
            while line:
                share = line[0]
                run = share.queue.head()
                if run is not None:
                    self._see_to_credit(share)
                    return run
                line.popleft().is_listed = False
        if self._shares and not self.is_braked and not self._aside:
            self._shares.clear()
        return None

    def turn(self, run: RouterRun) -> int:
        """How many calls of the head may be sent before others have their turn."""
        share = (self._came or self._turns)[0]
        queue = share.queue
        most = queue.turn(run) if isinstance(queue, FairQueue) else run.waiting
        if self._is_alone:
            return most
        return min(most, share.few, share.credit) if self._came else min(most, share.credit)

    def served(self, count: int) -> None:
        """`count` calls of the head were sent."""
        line = self._came or self._turns
        share = line[0]
        if isinstance(share.queue, FairQueue):
            share.queue.served(count)
        if self._is_alone:
            return
        share.credit -= count
        share.few -= count
        if share.credit <= 0 or (self._came and share.few <= 0):
            line.popleft()
            self._turns.append(share)

    def overtakers(self, head: RouterRun) -> int:
        """The number of calls that have overtaken the head."""
        return (self._came or self._turns)[0].queue.overtakers(head)

    def behind(self, head: RouterRun) -> list[RouterRun]:
        """Runs of the head's flow and tenant that may overtake it, oldest first."""
        return (self._came or self._turns)[0].queue.behind(head)

    def overtook(self, head: RouterRun, run: RouterRun, count: int) -> None:
        """`count` calls of a run behind the head are sent in its turn: call `served` next."""
        (self._came or self._turns)[0].queue.overtook(head, run, count)

    @property
    def may_delay(self) -> bool:
        """Whether the head may wait for a replica while others have room."""
        line = self._came or self._turns
        return not line or line[0].queue.may_delay

    def set_aside(self) -> None:
        """Passes over the head and those behind it, which no replica with room is to have, until `restore`."""
        line = self._came or self._turns
        inner = line[0].queue
        if isinstance(inner, FairQueue):
            inner.set_aside()
            self._within.append(inner)
            if inner.head() is not None:
                return
        self._aside.append((line, line.popleft()))

    def restore(self) -> None:
        """Those that were set aside have their turns again, as before."""
        while self._aside:
            line, share = self._aside.pop()
            line.appendleft(share)
        while self._within:
            self._within.pop().restore()

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        runs = sorted((run for share in self._shares.values() for run in share.queue.drain()), key=lambda run: run.age)
        for each in (self._shares, self._came, self._turns):
            each.clear()
        return runs

    def __bool__(self) -> bool:
        return bool(self._shares) and self.head() is not None

    @property
    def _is_alone(self) -> bool:
        return len(self._came) + len(self._turns) == 1 and not (self.is_braked or self._aside)

    def _see_to_credit(self, share: _Share) -> None:
        """Gives the first flow the credit of a new round if it has used up that of this one."""
        if share.round == self._round and share.credit <= 0:
            self._round += 1
        if share.round != self._round:
            share.round, share.credit = self._round, TURN_CALLS

    def _share(self, run: RouterRun) -> _Share:
        flow = self._sharer_of(run)
        share = self._shares.get(flow)
        if share is None:
            if len(self._shares) >= self._sweep_at:
                self._sweep()
            share = self._shares[flow] = _Share(flow, self._round, self._brakes)
        if not share.is_listed:
            share.is_listed = True
            if share.round != self._round:
                share.round, share.credit = self._round, TURN_CALLS
            elif share.brakes != self._brakes and run.waiting <= FEW_CALLS:
                share.credit, share.brakes = TURN_CALLS, self._brakes
            share.few = FEW_CALLS
            (self._came if run.waiting <= min(share.few, share.credit) else self._turns).append(share)
        return share

    def _queue_of(self, share: _Share, run: RouterRun) -> SloQueue | FairQueue:
        """The queue of the flow in which the run waits: by tenant as soon as there are two."""
        queue = share.queue
        if self._is_of_tenants or (run.tenant is share.tenant and type(queue) is SloQueue):
            return queue
        if queue.head() is None:
            queue = share.queue = SloQueue()
            share.tenant = run.tenant
        elif not isinstance(queue, FairQueue):
            waiting = sorted(queue.drain(), key=lambda each: each.age)
            queue = share.queue = FairQueue(_tenant_of)
            for each in waiting:
                queue.append(each)
        return queue

    def _sweep(self) -> None:
        """Removes the flows that have no waiting runs."""
        self._came = deque(share for share in self._came if share.queue.head() is not None)
        self._turns = deque(share for share in self._turns if share.queue.head() is not None)
        self._shares = {share.flow: share for share in (*self._came, *self._turns)}
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._shares))


class DueQueue:
    """Runs of all flows, the one that is due first at the head. Has the interface of `FairQueue`.

    Purpose: SLOs order among all callers, instead of fairness between them (`slo_scope: backend`).
    Invariants: runs leave in the order of a single `SloQueue`, except while the queue is braked: then only runs leave
    that arrived with few calls.
    """

    __slots__ = ("_few", "_many", "is_braked")

    def __init__(self) -> None:
        self.is_braked = False
        """Clients have too many unread results: runs with many calls wait."""
        self._few = SloQueue()
        """Runs that arrived with few calls."""
        self._many = SloQueue()

    def brake(self, *, is_on: bool) -> None:
        """Puts the brake on, or takes it off."""
        self.is_braked = is_on

    def append(self, run: RouterRun) -> None:
        """Queues the newest run."""
        self._queue_of(run).append(run)

    def put_back(self, *runs: RouterRun) -> None:
        """Queues runs, oldest first, that are older than others."""
        for queue in (self._few, self._many):
            if back := [run for run in runs if self._queue_of(run) is queue]:
                queue.put_back(*back)

    def head(self) -> RouterRun | None:
        """The run that is due first of those that may leave, or None."""
        few = self._few.head()
        many = None if self.is_braked else self._many.head()
        if few is None or many is None:
            return few or many
        return few if (few.due, *few.age) <= (many.due, *many.age) else many

    def turn(self, run: RouterRun) -> int:
        """How many calls of the head may be sent: all, as there are no turns."""
        return run.waiting

    def served(self, count: int) -> None:
        """`count` calls of the head were sent."""

    def overtakers(self, _head: RouterRun) -> int:
        """As the next, for the interface: no run overtakes one that is due earlier."""
        return 0

    def behind(self, _head: RouterRun) -> Sequence[RouterRun]:
        """No run may overtake the head."""
        return ()

    def overtook(self, head: RouterRun, run: RouterRun, count: int) -> None:
        """Does not happen."""

    may_delay = False
    """The head is not delayed: others would wait behind it."""

    def set_aside(self) -> None:
        """Does not happen."""

    def restore(self) -> None:
        """Nothing is set aside."""

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        return sorted((*self._few.drain(), *self._many.drain()), key=lambda run: run.age)

    def __bool__(self) -> bool:
        return self.head() is not None

    def _queue_of(self, run: RouterRun) -> SloQueue:
        return self._few if run.waiting <= FEW_CALLS else self._many
