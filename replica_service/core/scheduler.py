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

from replica_service.core.batching import Batcher, Weigh
from replica_service.core.call_times import ReplicaCallTimes, ServiceTimes
from replica_service.core.ending import Endings, Parking, UnstartedCalls
from replica_service.core.events import (
    AttachReceived,
    BatchEnded,
    BatchSettingsChanged,
    CallsEnded,
    DetachReceived,
    DispatchReceived,
    DrainBegan,
    EpochFenced,
    GraceEnded,
    KeysGained,
    KeysLost,
    LimitsChanged,
    LinkClosed,
    PartitionsRevoked,
    PayloadFailed,
    PayloadReceived,
    ReleaseReceived,
    RenewalReceived,
    ReplicaCommand,
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
from replica_service.core.permits import CAPACITY_GAP_S, PermitCapacity
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slot_operations import GrantedSlotOperations, HeldSlots
from replica_service.core.slot_table import SlotTable
from replica_service.core.starting import RunIntake, Starting
from replica_service.core.withdrawals import HandingBack, RunWithdrawals
from replica_service.core.work import Part
from slotmesh.handlers.batching import BatchControl

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
        self._state = state = SchedulerState(methods, weigh or {}, max_ongoing, prefetch, capacity_gap_s, chance)
        # In the order of their dependencies.
        unstarted = UnstartedCalls(state)
        self._parking = parking = Parking(state, unstarted)
        operations = GrantedSlotOperations(state, methods, unstarted)
        held = HeldSlots(state, operations)
        self._settle = Starting(state, new_secret, unstarted, parking, held, max_slots_per_caller).settle
        self._intake = RunIntake(state, methods, keyed_window, unstarted)
        self._endings = Endings(state, unstarted)
        self._handlers = self._table(
            RunWithdrawals(state, parking, unstarted, held),
            operations,
            held,
            HandingBack(state, parking, unstarted),
        )
        self._out = state.out
        self._permits = state.permits

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Handles the event and returns the commands that follow. `now`: monotonic seconds."""
        self._handlers[type(event)](event, now)
        self._settle(now)
        out = self._out
        if not out:
            return []
        commands = out.copy()
        out.clear()
        return commands

    def _limits_changed(self, event: LimitsChanged, _now: float) -> None:
        self._permits.max_ongoing, self._permits.prefetch = event.max_ongoing, event.prefetch
        self._state.batching.limit(event.max_ongoing)

    def _table(
        self, withdrawals: RunWithdrawals, slots: GrantedSlotOperations, held: HeldSlots, handing_back: HandingBack
    ) -> dict[type[ReplicaEvent], Callable[[Any, float], None]]:
        """The handlers of events, by class."""
        return {
            RunsReceived: self._intake.runs_received,
            PayloadReceived: self._intake.payload_received,
            PayloadFailed: self._intake.payload_failed,
            StampEchoed: self._parking.stamp_echoed,
            RunsCancelled: withdrawals.runs_cancelled,
            LinkClosed: withdrawals.link_closed,
            SessionsMoved: withdrawals.sessions_moved,
            DispatchReceived: slots.dispatch_received,
            RenewalReceived: slots.renewal_received,
            ReleaseReceived: slots.release_received,
            AttachReceived: held.attach_received,
            SlotCallReceived: held.slot_call_received,
            StreamRenewed: held.stream_renewed,
            DetachReceived: held.detach_received,
            CallsEnded: self._endings.calls_ended,
            TurnEnded: self._endings.turn_ended,
            TurnsEnded: self._endings.turns_ended,
            BatchEnded: self._endings.batch_ended,
            WorkReturned: self._endings.work_returned,
            PartitionsRevoked: handing_back.partitions_revoked,
            EpochFenced: handing_back.epoch_fenced,
            KeysGained: self._state.keys.keys_gained,
            KeysLost: self._state.keys.keys_lost,
            DrainBegan: handing_back.drain_began,
            GraceEnded: handing_back.grace_ended,
            LimitsChanged: self._limits_changed,
            ReplicaTimePassed: _nothing,
            BatchSettingsChanged: _nothing,
        }

    def hold_keys(self) -> None:
        """Enables the handler's hooks for gained and lost partitions. To be called before the first call."""
        self._state.keys.turn_on()

    # -- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Returns when `ReplicaTimePassed` is to be posted next; None if nothing depends on time."""
        state = self._state
        deadline = state.vacancies.notify_at
        if (due := state.payloads.due) < deadline:
            deadline = due
        if (due := state.slots.due) < deadline:
            deadline = due
        for batcher in state.batching.gathering:
            if (cut_at := batcher.next_deadline()) is not None and cut_at < deadline:
                deadline = cut_at
        return None if deadline == inf else deadline

    # -- state -------------------------------------------------------------------------------------------------------

    def capacity(self, link: RouterPeer) -> PermitCapacity:
        """Returns the capacity to report to the router. If it is full, the router is notified of room later."""
        permits = self._permits
        taken = permits.in_use + permits.waiting
        parked = sum(run.hi - run.lo for run in link.parked if run.lane is None and run.slot is None)
        others = taken - (link.unkeyed - link.in_slots - parked)
        is_full = others > 0 and taken >= permits.max_ongoing + permits.prefetch and not link.closed
        self._state.vacancies.reported(link, is_full=is_full)
        return PermitCapacity(
            permits.max_ongoing,
            permits.prefetch,
            self._intake.keyed_window,
            self._state.draining,
            others,
        )

    def about_to_end(self, link: RouterPeer) -> int:
        """Returns the number of the router's calls that are about to end while other calls wait here for permits.

        0 if no call waits here: then the router sends the next calls only when it has the results.
        """
        return link.unkeyed + link.keyed if self._permits.waiting or self._state.lanes.ready else 0

    @property
    def in_use(self) -> int:
        """Permits in use: by running calls, calls in a batcher, lanes with a turn, and slots."""
        return self._permits.in_use

    @property
    def waiting(self) -> int:
        """Unkeyed calls and reservations without a permit."""
        return self._permits.waiting

    @property
    def keyed(self) -> int:
        """Present keyed calls, running or not."""
        return self._state.lanes.calls

    @property
    def max_ongoing(self) -> int:
        """The number of permits."""
        return self._permits.max_ongoing

    @property
    def prefetch(self) -> int:
        """Unkeyed calls that may wait for a permit."""
        return self._permits.prefetch

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
        is_empty = not self.in_use and not self.waiting and not len(self._state.lanes) and not self._parking.links
        return is_empty and self._state.keys.is_settled

    @property
    def slots(self) -> SlotTable:
        """The slots; read only."""
        return self._state.slots.table

    @property
    def batchers(self) -> Mapping[str, Batcher]:
        """The batchers by method; read only."""
        return self._state.batching.batchers

    @property
    def call_times(self) -> ReplicaCallTimes:
        """How long calls wait here and run; read only."""
        return self._state.call_times

    @property
    def service_times(self) -> ServiceTimes:
        """The handler time of calls by method; read only."""
        return self._endings.service_times

    @property
    def newest_epoch(self) -> int:
        """The newest owner epoch received."""
        return self._state.ownership.newest

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


def _nothing(_event: ReplicaEvent, _now: float) -> None:
    """Changes nothing: due calls are started at the end of each step."""
