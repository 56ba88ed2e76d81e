"""One replica: its real core, a process, and an executor that takes its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import CallsEnded, ReplicaCommand, ReplicaTimePassed, RunsReceived
from replica_service.core.runs import ReplicaRun
from replica_service.core.runs import RouterPeer as Near
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from simulation.frames.machine import Process
from simulation.frames.pump import Pump
from simulation.ledger import Violation
from slotmesh.streams.chunks import joined

if TYPE_CHECKING:
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.replica import RoutedReplica as Far
    from simulation.frames.machine import Machine, Then
    from simulation.frames.router import FramesRouter
    from simulation.frames.settings import FramesSettings
    from simulation.kernel import Kernel

_OPTIONS = ReplicaCallOptions()
_STEP_S = 0.005
"""After this long the executor lets the rest of the process have the processor."""

ExecutedResults = tuple[list[int], list[bytes], ReportedCapacity, dict[str, MethodTime]]


class Wire:
    """A router's stream to the replica, this end of it."""

    def __init__(
        self, replica: FramesReplica, router: FramesRouter, far: Far, kernel: Kernel, settings: FramesSettings
    ) -> None:
        self.near = Near(self)
        self._replica = replica
        self._settings = settings
        self._run_ids: list[int] = []
        self._payloads: list[bytes] = []
        self._times_told = 0

        def send(frame: ExecutedResults) -> None:
            kernel.at(kernel.now + settings.costs.travel_s, lambda _: router.answered(far, *frame), None)

        self.outbox: Pump[ExecutedResults] = Pump(kernel, replica.process, self._waiting, self._cut, send)
        router.link(
            far,
            replica.capacity(self.near),
            lambda batches: kernel.at(
                kernel.now + settings.costs.travel_s, lambda _: replica.receive(self.near, batches), None
            ),
        )

    def ended(self, run: ReplicaRun, lo: int, hi: int) -> None:
        """These calls have ended well."""
        self._run_ids.extend(range(run.first + lo, run.first + hi))
        self._payloads.extend(run.payloads[lo:hi])
        self.outbox.wake()

    def _waiting(self) -> tuple[int, int, bool]:
        core = self._replica.core
        return len(self._run_ids), core.about_to_end(self.near), core.service_times.are_quick

    def _cut(self, _most: int) -> tuple[ExecutedResults, float]:
        costs, known = self._settings.costs, self._replica.core.service_times
        cost_s = costs.message_s + len(self._run_ids) * costs.replica_s
        times: dict[str, MethodTime] = {}
        if known.version != self._times_told:
            self._times_told = known.version
            cost_s += costs.message_s
            times = {each.method: MethodTime(each.service_s, each.batch_size) for each in known.reported}
        frame = (self._run_ids, self._payloads, self._replica.capacity(self.near), times)
        self._run_ids, self._payloads = [], []
        return frame, cost_s


class FramesReplica:
    """Executes calls, one after another or beside one another."""

    def __init__(
        self, kernel: Kernel, machine: Machine, settings: FramesSettings, service_s: Callable[[], float]
    ) -> None:
        """`service_s` draws the time of a call."""
        self.process = Process(machine)
        self.core = ReplicaScheduler({"": None}, max_ongoing=settings.slots)
        self.started_at: list[tuple[bytes, float]] = []
        """Payload of each call, and when its service began."""
        self._kernel = kernel
        self._settings = settings
        self._service_s = service_s
        self._work: deque[StartCalls] = deque()
        self._is_at_work = False
        self._timer_at: float | None = None

    def capacity(self, near: Near) -> ReportedCapacity:
        """What the router is told."""
        told = self.core.capacity(near)
        return ReportedCapacity(told.max_ongoing, told.prefetch, told.others, told.keyed_window, told.draining)

    def receive(self, near: Near, batches: Sequence[OutgoingBatch]) -> None:
        """A frame arrives."""
        costs = self._settings.costs
        cost_s = costs.message_s + sum(len(batch.payloads) for batch in batches) * costs.replica_s

        def submit() -> None:
            now = self._kernel.now
            runs = [
                ReplicaRun(
                    near, each.first_run_id, [*map(joined, each.payloads)], _OPTIONS, each.endpoint, now, each.deadline
                )
                for each in batches
            ]
            self._carry_out(self.core.step(RunsReceived(runs), now))

        self.process.do(lambda: (cost_s, submit))

    def _carry_out(self, commands: Sequence[ReplicaCommand]) -> None:
        for command in commands:
            if not isinstance(command, StartCalls):
                raise Violation(f"{command} without lanes, batches and other routers")
            self._work.append(command)
        if self._work and not self._is_at_work:
            self._is_at_work = True
            self.process.do(self._execute)
        when = self.core.next_deadline()
        if when is not None and when != self._timer_at:
            self._timer_at = when
            self._kernel.at(when, self._time_passed, when)

    def _execute(self) -> tuple[float, Then]:
        """Calls of one run, for a step."""
        work = self._work[0]
        run, lo = work.run, work.lo
        spent_s = 0.0
        at = lo
        while at < work.hi and spent_s < _STEP_S:
            service_s = self._service_s()
            self.started_at.append((run.payloads[at], self._kernel.now + spent_s))
            if self._settings.is_waiting:
                self._kernel.at(self._kernel.now + service_s, self._waited, (run, at))
            else:
                spent_s += service_s
            at += 1
        work.lo = at
        if at == work.hi:
            self._work.popleft()
        if self._settings.is_waiting:
            return spent_s, self._go_on
        return spent_s, lambda: self._ended(run, lo, at)

    def _waited(self, call: tuple[ReplicaRun, int]) -> None:
        run, at = call
        self.process.do(lambda: (0.0, lambda: self._end(run, at, at + 1, waited=True)))

    def _ended(self, run: ReplicaRun, lo: int, hi: int) -> None:
        self._end(run, lo, hi)
        self._go_on()

    def _end(self, run: ReplicaRun, lo: int, hi: int, *, waited: bool = False) -> None:
        run.link.outbox.ended(run, lo, hi)
        self._carry_out(self.core.step(CallsEnded(run, hi - lo, waited=waited), self._kernel.now))

    def _go_on(self) -> None:
        if self._work:
            self.process.do(self._execute)
        else:
            self._is_at_work = False

    def _time_passed(self, when: float) -> None:
        if when == self._timer_at:
            self._timer_at = None
            self._carry_out(self.core.step(ReplicaTimePassed(), self._kernel.now))
