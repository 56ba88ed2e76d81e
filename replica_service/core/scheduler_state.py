"""What waits and runs at one replica: the state that the parts of its scheduler share.

Purpose: each kind of state is an object of its own, which keeps its invariants; a part that decides takes from here
those that it works with, and no other.
Owner: the scheduler; between two of its steps nothing here changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replica_service.core.batching.batchers import Batching
from replica_service.core.batching.gathering import Weigh
from replica_service.core.commands import ReplicaCommand
from replica_service.core.lanes.key_holding import KeyHoldings
from replica_service.core.lanes.lanes import Lanes
from replica_service.core.lanes.ownership import ServedEpochs
from replica_service.core.permits.call_times import ReplicaCallTimes
from replica_service.core.permits.permits import Permits
from replica_service.core.permits.vacancies import Vacancies
from replica_service.core.slots.slot_calls import ReservedSlotCalls
from replica_service.core.starting.awaited_payloads import AwaitedPayloads
from slotmesh.handlers.batching import BatchControl


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
