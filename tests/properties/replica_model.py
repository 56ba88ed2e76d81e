"""A naive model of a replica: every call that was sent and what became of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import inf
from random import Random

from replica_service.core.call_metadata import Weighed
from replica_service.core.call_states import CallState
from replica_service.core.events import (
    BatchEnded,
    CallKeyHook,
    CallsEnded,
    DrainBegan,
    Fail,
    Grant,
    Refuse,
    ReplicaCommand,
    ReportAttach,
    ReportCapacity,
    ReportDefect,
    ReportDetached,
    ReportRenewal,
    TurnEnded,
)
from replica_service.core.permits import CAPACITY_GAP_S
from replica_service.core.runs import FRESH_S, ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import MAX_TURN_CALLS, StartBatch, StartCalls
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import BatchControl, BatchSettings

BATCH = BatchSettings(max_batch_size=3, batch_wait_timeout_s=0.5, max_concurrent_batches=1)
WEIGHED = BatchSettings(max_batch_size=3, batch_wait_timeout_s=0.5, max_concurrent_batches=2, batch_size_fn=lambda _: 1)
SETTINGS = {"batch": BATCH, "weighed": WEIGHED}
METHODS = {"plain": None, **{name: BatchControl(each) for name, each in SETTINGS.items()}}
WEIGHTS = (1.0, 0.5, 2.0, 0.0, 3.0, 1.0, 3.5, 1.5)
"""By run id; 3.5 is too heavy, and one of each round has none."""
KEYED_WINDOW = 12
LONGEST_RUN = 5
KEYS = ("red", "green", "blue")

UNWEIGHABLE = Failure(reason=Reason.BAD_ARGUMENTS, message="args[0]")
SPOILED = Failure(reason=Reason.BAD_REQUEST, message="chunk")


def weigh(run: ReplicaRun, index: int) -> Weighed:
    turn, place = divmod(run.first + index, len(WEIGHTS))
    if place == 0 and turn % 2:
        return Weighed(0.0, failure=UNWEIGHABLE)
    return Weighed(WEIGHTS[place])


CallId = tuple[int, int]
"""Link and run id."""


@dataclass
class Call:
    """What the model knows of one call."""

    run: ReplicaRun
    key: str
    deadline: float
    arrived: float
    order: int
    """Position among all calls ever sent."""
    state: str = "waiting"
    """waiting, running, ended (by itself), failed or refused (before it started)."""
    reason: Reason | None = None
    started: ReplicaRun | None = None
    """What it was started as a part of: the run, or one that was split off."""


@dataclass
class Router:
    link: RouterPeer
    number: int
    next_id: int = 1
    closed: bool = False
    calls: dict[int, Call] = field(default_factory=dict)


class ReplicaModel:
    """What became of each call that was sent, and the scheduler that decides it."""

    def __init__(self, max_ongoing: int, prefetch: int, troubles: set[str], chances: Random) -> None:
        self.troubles = troubles
        self.now = 100.0
        self.max_ongoing = self.allowed = max_ongoing
        self.prefetch = prefetch
        secrets = map(str.encode, map(str, itertools.count()))
        self.core = ReplicaScheduler(
            METHODS,
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            keyed_window=KEYED_WINDOW,
            chance=chances.random,
            weigh={"weighed": weigh},
            new_secret=lambda: next(secrets),
        )
        self.order = 0
        self.routers: list[Router] = [Router(self.new_link(), 0), Router(self.new_link(), 1)]
        self.router_of = {router.link: router for router in self.routers}
        self.running_calls: list[ReplicaRun] = []
        """One entry for each unkeyed call that runs."""
        self.turns: list[StartTurn] = []
        self.batches: list[StartBatch] = []
        self.last_started: dict[tuple[str, RouterPeer | None], int] = {}
        """By key, and by link where those that are silent let others overtake them."""
        self.epoch = 1
        self.revoked_through = -1
        self.floor: dict[str, int] = {}
        """Key -> lowest epoch that is still served."""
        self.told_full: set[RouterPeer] = set()
        self.told_at: dict[RouterPeer, float] = {}

    @property
    def room(self) -> int:
        """Permits, and the unkeyed calls that may wait for one."""
        return self.max_ongoing + max(self.prefetch, int(bool(self.core._state.lanes.ready)))

    def new_link(self) -> RouterPeer:
        link = RouterPeer()
        if "silence" in self.troubles:
            link.fresh_until = self.now + FRESH_S
        return link

    def uploading(self) -> list[ReplicaRun]:
        return [
            run
            for router in self.router_of.values()
            for run in router.link.waiting.values()
            if run.state is CallState.UPLOADING
        ]

    def leaves(self, run: ReplicaRun) -> None:
        """One call less of the run runs."""
        self.running_calls.remove(run)

    def is_fresh(self, run: ReplicaRun) -> bool:
        return self.now < run.link.fresh_until

    def is_stale(self, batch: StartBatch) -> bool:
        return not all(self.is_fresh(run) for run, _, _ in batch.parts)

    def is_running(self, run: ReplicaRun, index: int) -> bool:
        call = self.router_of[run.link].calls.get(run.first + index)
        return call is not None and call.started is run and call.state == "running"

    def keyed_here(self) -> list[Call]:
        return [
            call
            for router in self.router_of.values()
            for call in router.calls.values()
            if call.key and call.state in {"waiting", "held", "running"}
        ]

    # -- what the scheduler does with them -------------------------------------------------------------------------

    def carry_out(self, commands: list[ReplicaCommand]) -> None:
        self.some_expired = any(
            isinstance(command, Fail) and command.failure.reason is Reason.DEADLINE_IN_QUEUE for command in commands
        )
        for command in commands:
            match command:
                case StartCalls(run=run):
                    assert self.is_fresh(run)
                    assert run.state is not CallState.UPLOADING
                    assert not run.options.ordering_key
                    assert run.options.method == "plain"
                    for index in range(command.lo, command.hi):
                        self.begins(run, index)
                        self.call(run, index).state = "running"
                        self.running_calls.append(run)
                case StartTurn(run=run):
                    assert self.is_fresh(run)
                    assert run.state is not CallState.UPLOADING
                    assert run.options.method == "plain"
                    assert 0 < command.hi - command.lo <= MAX_TURN_CALLS
                    assert not any(turn.lane is command.lane for turn in self.turns)
                    assert not any(command.lane in batch.lanes for batch in self.batches)
                    for index in range(command.lo, command.hi):
                        assert self.call(run, index).state == "waiting"
                        self.call(run, index).state = "held"
                    self.turns.append(command)
                case StartBatch():
                    self.batch_begins(command)
                case Refuse(run=run, failure=failure) | Fail(run=run, failure=failure):
                    assert failure.executed is Executed.NO
                    for index in range(command.lo, command.hi):
                        call = self.call(run, index)
                        assert call.state == "waiting", (call.state, failure)
                        call.state = "failed" if isinstance(command, Fail) else "refused"
                        call.reason = failure.reason
                        if failure.reason is Reason.DEADLINE_IN_QUEUE:
                            assert call.deadline <= self.now
                case Grant() | ReportRenewal() | ReportAttach() | ReportDetached() | CallKeyHook():
                    pass  # only where there are slots: see `test_replica_slots.py`; or hooks: `test_key_holding.py`
                case ReportDefect(what=what):
                    raise AssertionError(what)
                case ReportCapacity(link=link):
                    assert not link.closed
                    assert self.core.in_use + self.core.waiting < self.room
                    self.told_full.remove(link)
                    assert self.now >= self.told_at.get(link, -inf) + CAPACITY_GAP_S / 2
                    self.told_at[link] = self.now

    def batch_begins(self, batch: StartBatch) -> None:
        method = batch.method
        limits = SETTINGS[method]
        assert not self.is_stale(batch)
        assert batch.count == sum(hi - lo for _, lo, hi in batch.parts)
        assert batch.count >= 1
        assert sum(each.method == batch.method for each in self.batches) < limits.max_concurrent_batches
        arrived = min(run.arrived for run, _, _ in batch.parts)
        if method == "batch":
            most_calls = min(limits.max_batch_size, self.max_ongoing)
        else:  # what does not fit any more is seen in `test_replica_batches.py`
            most_calls = self.max_ongoing
            each = [weigh(run, index) for run, lo, hi in batch.parts for index in range(lo, hi)]
            assert all(one.failure is None for one in each)
            assert sum(one.weight for one in each) <= limits.max_batch_size
        is_full = batch.count == most_calls or method == "weighed"
        assert batch.count <= max(most_calls, self.core.in_use)
        # Calls found expired while it is cut make it smaller.
        assert (
            is_full
            or self.some_expired
            or "silence" in self.troubles
            or self.now >= arrived + limits.batch_wait_timeout_s
        )
        for run, lo, hi in batch.parts:
            assert run.state is not CallState.UPLOADING
            for index in range(lo, hi):
                self.begins(run, index)
                self.call(run, index).state = "running"
        assert len(set(batch.lanes)) == len(batch.lanes)
        for lane in batch.lanes:
            assert not any(turn.lane is lane for turn in self.turns)
            assert not any(lane in other.lanes for other in self.batches)
        self.batches.append(batch)

    def begins(self, run: ReplicaRun, index: int) -> None:
        call = self.call(run, index)
        assert call.state in {"waiting", "held"}, call.state
        if call.state == "waiting":
            assert self.now < call.deadline
        call.state = "waiting"
        call.started = run
        assert run.begin <= index < run.end
        assert run.payloads, "a call starts that has no payload any more"
        if call.key:
            key = self.lane_of(call)
            assert call.order > self.last_started.get(key, 0), "a call of a key was overtaken"
            self.last_started[key] = call.order

    def lane_of(self, call: Call) -> tuple[str, RouterPeer | None]:
        return call.key, call.run.link if "silence" in self.troubles else None

    def call(self, run: ReplicaRun, index: int) -> Call:
        return self.router_of[run.link].calls[run.first + index]

    def is_held(self, call: Call) -> bool:
        return call.state == "held"

    def core_drains(self) -> None:
        self.carry_out(self.core.step(DrainBegan(), self.now))
        for router in self.router_of.values():
            assert not any(call.state == "waiting" and call.run.slot is None for call in router.calls.values())
        for turn in list(self.turns):
            self.turns.remove(turn)
            self.begins(turn.run, turn.lo)
            self.call(turn.run, turn.lo).state = "failed" if is_withdrawn(turn.run, turn.lo) else "ended"
            for index in range(turn.lo + 1, turn.hi):
                self.call(turn.run, index).state = "waiting"
            self.carry_out(self.core.step(TurnEnded(turn, turn.lo + 1), self.now))
        while self.batches:
            batch = self.batches.pop()
            for run, lo, hi in batch.parts:
                for index in range(lo, hi):
                    self.call(run, index).state = "ended"
            self.carry_out(self.core.step(BatchEnded(batch), self.now))
        while self.running_calls:
            self.carry_out(self.core.step(CallsEnded(self.running_calls.pop(), 1), self.now))
        for router in self.router_of.values():
            for call in router.calls.values():
                if call.state == "running":
                    call.state = "ended"
                if call.state in {"waiting", "held"} and call.run.slot is not None:
                    continue  # it waits for its silent router, and has not ended
                for each in (call.run, call.started or call.run):
                    assert (each.left, each.payloads) == (0, ()), "payloads are kept of calls that ended"


def is_withdrawn(run: ReplicaRun, index: int) -> bool:
    return run.withdrawn is not None and index in run.withdrawn
