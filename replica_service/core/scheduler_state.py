"""The waiting and running calls of one replica: the state that the steps of its scheduler read and change.

Purpose: each kind of state is an object that keeps its own invariants. The steps are functions of this state (in
`starting.py`, `ending.py`, `withdrawals.py` and `slot_operations.py`), with the arguments `(state, event, now,
commands)`. A step appends what follows from it to `commands`, in order; nothing of it stays in the state.
Owner: the scheduler; between two of its steps nothing here changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from replica_service.core.batch_gathering import Batcher, Weigh
from replica_service.core.call_times import ReplicaCallTimes, ServiceTimes
from replica_service.core.lanes import Lanes
from replica_service.core.permits import Permits, Vacancies
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.served_partitions import KeyHoldings, ServedEpochs
from replica_service.core.slot_table import ReservedSlotCalls
from slotmesh.handlers.batch_settings import BatchControl


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

    def late(self, now: float) -> list[ReplicaRun]:
        """Runs whose deadlines have passed: they are answered next, without waiting for their payloads."""
        late = [run for run in self.runs if run.deadline <= now]
        self.due = min((run.deadline for run in self.runs if run.deadline > now), default=inf)
        return late


class SchedulerState:
    """All of it."""

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        weigh: Mapping[str, Weigh],
        *,
        max_ongoing: int,
        prefetch: int,
        keyed_window: int,
        vacancies: Vacancies,
        new_secret: Callable[[], bytes],
        max_slots_per_caller: int | None,
    ) -> None:
        """For the arguments see `ReplicaScheduler`."""
        self.methods = methods
        self.keyed_window = keyed_window
        self.new_secret = new_secret
        self.max_slots_per_caller = max_slots_per_caller
        self.lanes = Lanes()
        self.permits = Permits(max_ongoing, prefetch, self.lanes.ready)
        self.batchers = {
            name: Batcher(name, control, max_ongoing, weigh.get(name))
            for name, control in methods.items()
            if control is not None
        }
        """By method."""
        self.gathering: dict[Batcher, None] = {}
        """Batchers in which calls wait."""
        self.slots = ReservedSlotCalls(self.permits)
        self.payloads = AwaitedPayloads()
        self.ownership = ServedEpochs()
        self.keys = KeyHoldings(self.lanes)
        self.vacancies = vacancies
        self.call_times = ReplicaCallTimes()
        self.service_times = ServiceTimes(self.batchers)
        self.parked: dict[RouterPeer, None] = {}
        """Links with parked runs."""
        self.odd = 0
        """Which side gets the odd permit when lanes and unkeyed runs share: 1 means lanes."""
        self.draining = False
        """Nothing new is taken; calls start in slots only. Never goes back."""
        self.ended = False
        """Nothing starts any more, be it in a slot. Never goes back."""
