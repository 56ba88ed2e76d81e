"""The waiting and running calls of one replica: the state that the parts of its scheduler share.

Purpose: each kind of state is an object that keeps its own invariants; each part of the scheduler takes only the
objects that it works with.
Owner: the scheduler; between two of its steps nothing here changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from replica_service.core.accounting import Accounting
from replica_service.core.batching import Batcher, Weigh
from replica_service.core.call_times import ReplicaCallTimes
from replica_service.core.events import ReplicaCommand
from replica_service.core.lanes import Lanes
from replica_service.core.partitions import KeyHoldings, ServedEpochs
from replica_service.core.permits import Permits, Vacancies
from replica_service.core.runs import ReplicaLane, ReplicaRun
from replica_service.core.slot_table import ReservedSlotCalls
from replica_service.core.work import StartBatch
from slotmesh.handlers.batching import BatchControl


class Batching:
    """The batchers of all batch methods of one replica."""

    __slots__ = ("_lanes", "_permits", "batchers", "gathering")

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        weigh: Mapping[str, Weigh],
        permits: Permits,
        lanes: Lanes,
    ) -> None:
        """`methods` has the settings of batch methods, by name. `weigh`: see `ReplicaScheduler`."""
        self.batchers = {
            name: Batcher(name, control, permits.max_ongoing, weigh.get(name))
            for name, control in methods.items()
            if control is not None
        }
        """By method."""
        self.gathering: dict[Batcher, None] = {}
        """Batchers in which calls wait."""
        self._permits = permits
        self._lanes = lanes

    def limit(self, max_ongoing: int) -> None:
        """Sets the number of permits."""
        for batcher in self.batchers.values():
            batcher.gathered.limit(max_ongoing)

    def recount(self, lane: ReplicaLane) -> None:
        """Counts a changed lane anew; removes it from its batcher if its first call is of another method."""
        method = lane.batch_method
        if method is not None and not self.batchers[method].gathered.recount(lane):
            self.release((lane,))

    def extend(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """Counts a run that was just appended to the lane, if a batcher has the lane."""
        if lane.batch_method is not None:
            self.batchers[lane.batch_method].gathered.extend(lane, run)

    def ended(self, batch: StartBatch) -> bool:
        """Removes a batch from the running ones of its method. Returns whether it was one of them."""
        running = self.batchers[batch.method].running
        if batch not in running:
            return False
        del running[batch]
        return True

    def release(self, lanes: Iterable[ReplicaLane]) -> None:
        """Takes the permits of these lanes; they wait for another one, or are dropped if they have no calls."""
        for lane in lanes:
            self._permits.in_use -= 1
            self._lanes.give_back(lane)


class AwaitedPayloads:
    """Runs whose payloads arrive in chunks: they do not start until the payload is complete.

    A run is here exactly while it is uploading and accepted; it is a single call. An unkeyed run is in no queue; a
    keyed run is in its lane, which it blocks when its turn comes.
    """

    __slots__ = ("due", "runs")

    def __init__(self) -> None:
        self.runs: dict[ReplicaRun, None] = {}
        self.due = inf
        """None of their deadlines is earlier; monotonic seconds."""

    def add(self, run: ReplicaRun) -> None:
        self.runs[run] = None
        self.due = min(self.due, run.deadline)

    def gone(self, run: ReplicaRun) -> None:
        """The payload is complete, or the call has its answer."""
        del self.runs[run]

    def late(self, now: float) -> list[ReplicaRun]:
        """Runs whose deadlines have passed: they are answered next, without waiting for their payloads."""
        late = [run for run in self.runs if run.deadline <= now]
        self.due = min((run.deadline for run in self.runs if run.deadline > now), default=inf)
        return late


class SchedulerState:
    """All of it."""

    __slots__ = (
        "accounting",
        "batching",
        "call_times",
        "draining",
        "ended",
        "keys",
        "lanes",
        "out",
        "ownership",
        "payloads",
        "permits",
        "slots",
        "vacancies",
    )

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        weigh: Mapping[str, Weigh],
        max_ongoing: int,
        prefetch: int,
        capacity_gap_s: float,
        chance: Callable[[], float],
    ) -> None:
        """For the arguments see `ReplicaScheduler`."""
        self.out: list[ReplicaCommand] = []
        """What was decided in the step that is under way."""
        self.call_times = ReplicaCallTimes()
        self.permits = Permits(max_ongoing, prefetch)
        self.lanes = Lanes(self.out)
        self.batching = Batching(methods, weigh, self.permits, self.lanes)
        self.slots = ReservedSlotCalls(self.permits)
        self.accounting = Accounting(self.permits, self.lanes, self.slots, self.out)
        self.payloads = AwaitedPayloads()
        self.ownership = ServedEpochs()
        self.keys = KeyHoldings(self.lanes, self.out)
        self.vacancies = Vacancies(capacity_gap_s, chance)
        self.draining = False
        """Nothing new is taken; calls start in slots only. Never goes back."""
        self.ended = False
        """Nothing starts any more, be it in a slot. Never goes back."""
