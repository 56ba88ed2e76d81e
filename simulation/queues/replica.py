"""One replica: its real core between virtual links.

Purpose: what the engine, its executor and its outboxes do, on virtual time. The time of each call's service is drawn.
Owner: the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import (
    CallsEnded,
    Fail,
    Refuse,
    ReplicaCommand,
    ReplicaTimePassed,
    ReportCapacity,
    RunsReceived,
)
from replica_service.core.runs import ReplicaRun
from replica_service.core.runs import RouterPeer as Near
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from simulation.ledger import Violation
from simulation.payloads import call_of
from slotmesh.streams.chunks import joined

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from router_service.core.replicas.frames import OutgoingBatch
    from simulation.kernel import Kernel
    from simulation.ledger import SimulationLedger

_OPTIONS = ReplicaCallOptions()


class LinkToRouter(Protocol):
    """What the replica says to one router."""

    def flush(self) -> None:
        """All that is to be said leaves the replica."""


class QueuesReplica:
    """Runs calls."""

    def __init__(
        self,
        kernel: Kernel,
        ledger: SimulationLedger,
        *,
        slots: int,
        travel: float,
        service_time: Callable[[int], float | None],
        capacity_gap: float,
        draws: Random,
    ) -> None:
        """`travel`: how long each call was on its way here. `service_time`: of a call, by its number, as it starts.

        Times in mean service times. None: the call ends when `end_at` plans it.
        """
        self.core = ReplicaScheduler({"": None}, max_ongoing=slots, capacity_gap_s=capacity_gap, chance=draws.random)
        self.ledger = ledger
        self.pending: list[LinkToRouter] = []
        """Links with something to say once the event is over."""
        self.running = 0
        """Calls that run now. To be read, as the next."""
        self.started = 0
        """Calls that have run or run."""
        self._slots = slots
        self._kernel = kernel
        self._travel = travel
        self._service_time = service_time
        self._draws = draws
        self._timer_at: float | None = None
        self._unplanned: dict[int, tuple[ReplicaRun, int]] = {}
        """Running calls whose ends are not planned, by number."""

    def end_at(self, call: int, when: float) -> None:
        """Plans the end of a call that started without a service time."""
        self._kernel.at(when, self._end, self._unplanned.pop(call))

    def receive(self, near: Near, batches: Sequence[OutgoingBatch]) -> None:
        """A frame arrives."""
        now = self._kernel.now
        runs = [
            ReplicaRun(
                near, batch.first_run_id, [*map(joined, batch.payloads)], _OPTIONS, batch.endpoint, now, batch.deadline
            )
            for batch in batches
        ]
        self._carry_out(self.core.step(RunsReceived(runs), now))

    def _carry_out(self, commands: list[ReplicaCommand]) -> None:
        kernel, ledger = self._kernel, self.ledger
        now = kernel.now
        for command in commands:
            match command:
                case StartCalls(run=run, lo=lo, hi=hi):
                    self.running += hi - lo
                    self.started += hi - lo
                    for index in range(lo, hi):
                        call = call_of(run.payloads[index])
                        ledger.started(call, now, self._travel)
                        took = self._service_time(call)
                        if took is None:
                            self._unplanned[call] = run, index
                        else:
                            kernel.at(now + took, self._end, (run, index))
                case Refuse(run=run, lo=lo, hi=hi, failure=failure):
                    run.link.outbox.refuse(list(range(run.first + lo, run.first + hi)), failure)
                case Fail(run=run, lo=lo, hi=hi, failure=failure):
                    run.link.outbox.fail(list(range(run.first + lo, run.first + hi)), failure)
                case ReportCapacity(link=near):
                    near.outbox.tell_capacity()
                case _:
                    raise Violation(f"{command} without lanes and batches")
        if self.running > self._slots:
            raise Violation(f"{self.running} calls run in the {self._slots} slots of one replica")
        if len(self.pending) > 1:
            # All links are equally quick, and none of them comes first as a rule.
            self._draws.shuffle(self.pending)
        for link in self.pending:
            link.flush()
        self.pending.clear()
        when = self.core.next_deadline()
        if when is not None and when != self._timer_at:
            self._timer_at = when
            kernel.at(when, self._time_passed, when)

    def _end(self, ended: tuple[ReplicaRun, int]) -> None:
        run, index = ended
        now = self._kernel.now
        self.running -= 1
        self.ledger.ended(now)
        run.link.outbox.answer(run.first + index, run.payloads[index])
        self._carry_out(self.core.step(CallsEnded(run, 1), now))

    def _time_passed(self, when: float) -> None:
        if when == self._timer_at:
            self._timer_at = None
            self._carry_out(self.core.step(ReplicaTimePassed(), self._kernel.now))
