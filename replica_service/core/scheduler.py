"""The replica's decisions, `(event, now) -> commands`: which calls run next, by permits, lanes, batches and drain.

Purpose: the core, which gets events of routers and executors from the engine. Each event has one handler, which changes
the state of its part; at the end of the step, everything that can start is started once (`starting.py`).
Invariants: `in_use <= max_ongoing`, unless `max_ongoing` was lowered; then no call starts until it holds again. An
unkeyed call holds one permit from its start, or from entering a batcher, to its end; a lane holds one for its turn; a
slot holds one from its grant to its end, or to the end of the call in it. No permit is free while a call waits for one.
Each call is started at most once, and gets exactly one outcome or refusal. No call starts whose link is not fresh. Cost
is per run, never per call.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from replica_service.core.batch_gathering import Batcher, Weigh
from replica_service.core.call_times import ReplicaCallTimes, ServiceTimes
from replica_service.core.ending import batch_ended, calls_ended, stamp_echoed, turn_ended, turns_ended, work_returned
from replica_service.core.events import (
    AttachReceived,
    BatchEnded,
    BatchSettingsChanged,
    CallsEnded,
    Commands,
    DetachReceived,
    DispatchReceived,
    DrainBegan,
    EpochFenced,
    GraceEnded,
    KeysGained,
    KeysLost,
    LimitsChanged,
    LinkClosed,
    LookUpReceived,
    PartitionsRevoked,
    PayloadFailed,
    PayloadReceived,
    ReleaseReceived,
    RenewalReceived,
    ReplicaEvent,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
    SessionsMoved,
    SlotCallReceived,
    StampEchoed,
    StreamRenewed,
    TurnEnded,
    TurnsEnded,
    WorkReturned,
)
from replica_service.core.permits import CAPACITY_GAP_S, PermitCapacity, Vacancies
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slot_operations import (
    attach_received,
    detach_received,
    dispatch_received,
    look_up_received,
    release_received,
    renewal_received,
    slot_call_received,
    stream_renewed,
)
from replica_service.core.slot_table import SlotTable
from replica_service.core.starting import payload_failed, payload_received, runs_received, settle
from replica_service.core.withdrawals import (
    drain_began,
    epoch_fenced,
    link_closed,
    partitions_revoked,
    runs_cancelled,
    sessions_moved,
)
from replica_service.core.work import Part
from slotmesh.handlers.batch_settings import BatchControl

DEFAULT_KEYED_WINDOW = 8192
"""Keyed calls without outcome that one router may have here."""


def _no_secrets() -> bytes:
    raise RuntimeError("new_secret: needed where slots are reserved")


class ReplicaScheduler:
    """All decisions about the calls of one replica."""

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        *,
        weigh: Mapping[str, Weigh] | None = None,
        max_ongoing: int,
        prefetch: int = 0,
        keyed_window: int = DEFAULT_KEYED_WINDOW,
        capacity_gap_s: float = CAPACITY_GAP_S,
        chance: Callable[[], float] = lambda: 0.5,
        new_secret: Callable[[], bytes] = _no_secrets,
        max_slots_per_caller: int | None = None,
    ) -> None:
        """`methods`: the callable methods by name, with the settings of batch methods.

        `weigh`: computes the weight of calls of batch methods that have one. `capacity_gap_s` and `chance`: see
        `Vacancies`. `new_secret` draws 128 random bits for each slot. `max_slots_per_caller`: limit for one identified
        caller; None: `SHARE_OF_ONE_CALLER` of the permits.
        """
        self._state = state = SchedulerState(
            methods,
            weigh or {},
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            keyed_window=keyed_window,
            vacancies=Vacancies(capacity_gap_s, chance),
            new_secret=new_secret,
            max_slots_per_caller=max_slots_per_caller,
        )
        self.slots: SlotTable = state.slots.table
        """The slots; read only, as the next ones."""
        self.batchers: Mapping[str, Batcher] = state.batchers
        """The batchers by method."""
        self.call_times: ReplicaCallTimes = state.call_times
        """How long calls wait here and run."""
        self.service_times: ServiceTimes = state.service_times
        """The handler time of calls by method."""

    def step(self, event: ReplicaEvent, now: float) -> Commands:
        """Handles the event and returns the commands that follow. `now`: monotonic seconds."""
        commands: Commands = []
        self.follow(event, now, commands)
        return commands

    def follow(self, event: ReplicaEvent, now: float, commands: Commands) -> None:
        """Adds the commands that follow. If it raises (a defect), those added before are carried out all the same."""
        try:
            HANDLERS[type(event)](self._state, event, now, commands)
        finally:
            settle(self._state, now, commands)

    def hold_keys(self) -> None:
        """Enables the handler's hooks for gained and lost partitions. To be called before the first call."""
        self._state.keys.is_on = True

    # -- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Returns when `ReplicaTimePassed` is to be posted next; None if nothing depends on time."""
        state = self._state
        deadline = state.vacancies.notify_at
        if (due := state.payloads.due) < deadline:
            deadline = due
        if (due := state.slots.due) < deadline:
            deadline = due
        for batcher in state.gathering:
            if (cut_at := batcher.next_deadline()) is not None and cut_at < deadline:
                deadline = cut_at
        return None if deadline == inf else deadline

    # -- state -------------------------------------------------------------------------------------------------------

    def capacity(self, link: RouterPeer) -> PermitCapacity:
        """Returns the capacity to report to the router. If it is full, the router is notified of room later."""
        permits = self._state.permits
        taken = permits.in_use + permits.waiting
        parked = sum(run.hi - run.lo for run in link.parked if run.lane is None and run.slot is None)
        others = taken - (link.unkeyed - link.in_slots - parked)
        is_full = others > 0 and taken >= permits.max_ongoing + permits.room_to_wait and not link.closed
        self._state.vacancies.reported(link, is_full=is_full)
        return PermitCapacity(
            permits.max_ongoing,
            permits.room_to_wait,
            self._state.keyed_window,
            self._state.draining,
            others,
        )

    def about_to_end(self, link: RouterPeer) -> int:
        """Returns the number of the router's calls that are about to end while other calls wait here for permits.

        0 if no call waits here: then the router sends the next calls only when it has the results.
        """
        return link.unkeyed + link.keyed if self._state.permits.waiting or self._state.lanes.ready else 0

    @property
    def in_use(self) -> int:
        """Permits in use: by running calls, calls in a batcher, lanes with a turn, and slots."""
        return self._state.permits.in_use

    @property
    def waiting(self) -> int:
        """Unkeyed calls and reservations without a permit."""
        return self._state.permits.waiting

    @property
    def keyed(self) -> int:
        """Present keyed calls, running or not."""
        return self._state.lanes.calls

    @property
    def max_ongoing(self) -> int:
        """The number of permits."""
        return self._state.permits.max_ongoing

    @property
    def prefetch(self) -> int:
        """Unkeyed calls that may wait for a permit."""
        return self._state.permits.prefetch

    @property
    def draining(self) -> bool:
        """Whether the replica accepts no new calls any more."""
        return self._state.draining

    @property
    def is_quiet(self) -> bool:
        """Whether no call runs or waits with a permit."""
        return self.in_use == self.slots.reserved - self.slots.busy

    @property
    def is_idle(self) -> bool:
        """Whether no call runs or waits, no slot is granted, and no hook for keys runs."""
        is_empty = not self.in_use and not self.waiting and not len(self._state.lanes) and not self._state.parked
        return is_empty and self._state.keys.is_settled

    @property
    def newest_epoch(self) -> int:
        """The newest owner epoch received."""
        return self._state.ownership.newest

    def owns(self, run: ReplicaRun) -> bool:
        """Whether the replica may execute the run: it is in a slot, or this replica owns its partition."""
        in_slot = run.request is not None and bool(run.request.slot)
        return in_slot or self._state.ownership.serves(run.endpoint, run.partition, run.owner_epoch)

    def is_emptied(self, endpoint: str, partition: int) -> bool:
        """Whether a revoked partition has no running or waiting calls, and the handler's hook for it has ended."""
        return not self._state.lanes.is_left(endpoint, partition) and not self._state.keys.holds(endpoint, partition)

    def busy(self) -> dict[str, set[int]]:
        """Returns the partitions, by endpoint, with running or waiting calls, and those that the handler holds."""
        busy = self._state.keys.by_endpoint()
        for lane in self._state.lanes.all():
            busy.setdefault(lane.key[0], set()).add(lane.partition)
        return busy

    def turns_of(self, runs: Iterable[ReplicaRun]) -> list[StartTurn]:
        """Returns the current turns with calls of these runs."""
        return [run.lane.turn for run in runs if run.lane is not None and run.lane.turn and run.lane.turn.run is run]

    def in_batches(self) -> list[Part]:
        """Returns the calls in running batches."""
        return [part for batcher in self.batchers.values() for batch in batcher.running for part in batch.parts]


def _limits_changed(state: SchedulerState, event: LimitsChanged, _now: float, _commands: Commands) -> None:
    state.permits.max_ongoing, state.permits.prefetch = event.max_ongoing, event.prefetch
    for batcher in state.batchers.values():
        batcher.gathered.limit(event.max_ongoing)


def _nothing(_state: SchedulerState, _event: ReplicaEvent, _now: float, _commands: Commands) -> None:
    """Changes nothing: due calls are started at the end of each step."""


HANDLERS: Mapping[type[ReplicaEvent], Callable[[SchedulerState, Any, float, Commands], None]] = {
    RunsReceived: runs_received,
    PayloadReceived: payload_received,
    PayloadFailed: payload_failed,
    StampEchoed: stamp_echoed,
    RunsCancelled: runs_cancelled,
    LinkClosed: link_closed,
    SessionsMoved: sessions_moved,
    DispatchReceived: dispatch_received,
    RenewalReceived: renewal_received,
    ReleaseReceived: release_received,
    LookUpReceived: look_up_received,
    AttachReceived: attach_received,
    SlotCallReceived: slot_call_received,
    StreamRenewed: stream_renewed,
    DetachReceived: detach_received,
    CallsEnded: calls_ended,
    TurnEnded: turn_ended,
    TurnsEnded: turns_ended,
    BatchEnded: batch_ended,
    WorkReturned: work_returned,
    PartitionsRevoked: partitions_revoked,
    EpochFenced: epoch_fenced,
    KeysGained: lambda state, event, _now, commands: state.keys.gained(event, commands),
    KeysLost: lambda state, event, _now, _commands: state.keys.lost(event),
    DrainBegan: drain_began,
    GraceEnded: drain_began,
    LimitsChanged: _limits_changed,
    ReplicaTimePassed: _nothing,
    BatchSettingsChanged: _nothing,
}
"""The handlers of events, by class."""
