"""The waiting and running calls of one replica: the state that the parts of its scheduler share.

Purpose: each kind of state is an object that keeps its own invariants; each part of the scheduler takes only the
objects that it works with.
Owner: the scheduler; between two of its steps nothing here changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from replica_service.core.calls.commands import ReplicaCommand
from replica_service.core.calls.runs import ReplicaRun
from replica_service.core.state.batch_gathering import Weigh
from replica_service.core.state.batcher import Batching
from replica_service.core.state.call_times import ReplicaCallTimes
from replica_service.core.state.lanes import Lanes
from replica_service.core.state.partitions import KeyHoldings, ServedEpochs
from replica_service.core.state.permits import Permits, Vacancies
from replica_service.core.state.slot_table import ReservedSlotCalls
from slotmesh.handlers.batching import BatchControl


class AwaitedPayloads:
    """Runs whose payloads arrive in chunks: they do not start until the payload is complete.

    A run is here exactly while `run.awaits`; it is a single call. An unkeyed run is in no queue; a keyed run is in its
    lane, which it blocks when its turn comes.
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
        run.awaits = False
        del self.runs[run]

    def late(self, now: float) -> list[ReplicaRun]:
        """Runs whose deadlines have passed: they are answered next, without waiting for their payloads."""
        late = [run for run in self.runs if run.deadline <= now]
        self.due = min((run.deadline for run in self.runs if run.deadline > now), default=inf)
        return late


class SchedulerState:
    """All of it."""

    __slots__ = (
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
        self.lanes = Lanes()
        self.batching = Batching(methods, weigh, self.permits, self.lanes)
        self.slots = ReservedSlotCalls(self.permits)
        self.payloads = AwaitedPayloads()
        self.ownership = ServedEpochs()
        self.keys = KeyHoldings(self.lanes, self.out)
        self.vacancies = Vacancies(capacity_gap_s, chance)
        self.draining = False
        """Nothing new is taken; calls start in slots only. Never goes back."""
        self.ended = False
        """Nothing starts any more, be it in a slot. Never goes back."""
