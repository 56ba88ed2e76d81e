"""One router: its real core, a process, and the writing halves of its streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverResults, Flush, OpenLink, RouterCommand
from router_service.core.events import (
    CallsSubmitted,
    LinkOpened,
    RouterTimePassed,
    RunsCompleted,
    ServiceTimesReported,
    TableReceived,
)
from router_service.core.replicas.frames import pending
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from simulation.frames.machine import Process
from simulation.frames.pump import Pump
from simulation.ledger import Violation
from simulation.payloads import payload_of

if TYPE_CHECKING:
    from router_service.core.limits.capacity import MethodTime, ReportedCapacity
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.replica import RoutedReplica as Far
    from router_service.core.routing_table import RoutingTable
    from router_service.core.sampling import Chance
    from simulation.frames.client import FramesClient
    from simulation.frames.machine import Machine, Then
    from simulation.frames.settings import Costs
    from simulation.kernel import Kernel

ENDPOINT = "endpoint"
_MAX_FRAME_CALLS = 16_384
_MAX_FRAME_BYTES = 1024 * 1024
_OPTIONS = RouterCallOptions()

Batches = list["OutgoingBatch"]


class FramesRouter:
    """Between clients and replicas."""

    def __init__(self, kernel: Kernel, machine: Machine, costs: Costs, chance: Chance) -> None:
        self.process = Process(machine)
        self.core = RouterScheduler(chance)
        self.to_clients: list[Pump[list[int]]] = []
        self.to_replicas: list[Pump[Batches]] = []
        self._kernel = kernel
        self._costs = costs
        self._links: dict[Far, Pump[Batches]] = {}
        self._outcomes: dict[Caller, tuple[list[int], Pump[list[int]]]] = {}
        self._are_quick = False
        """The latest results were of quick calls."""
        self._timer_at = inf

    def apply(self, table: RoutingTable) -> list[Far]:
        """Takes the table; returns the replicas to connect to."""
        commands = self.core.step(TableReceived(table), self._kernel.now)
        return [command.replica for command in commands if isinstance(command, OpenLink)]

    def connect(self, client: FramesClient) -> None:
        """Takes the client's calls from now on."""
        caller = Caller(Window(calls=2**53, bytes=2**53))
        ids: list[int] = []

        def under_way() -> int:
            return sum(run.unanswered for run in caller.runs)

        def cut(most: int) -> tuple[list[int], float]:
            frame = ids[:most]
            del ids[:most]
            return frame, self._cost(len(frame))

        def send(frame: list[int]) -> None:
            self._kernel.at(self._kernel.now + self._costs.travel_s, client.answered, frame)

        pump = Pump(self._kernel, self.process, lambda: (len(ids), under_way(), self._are_quick), cut, send)
        self.to_clients.append(pump)
        self._outcomes[caller] = ids, pump
        client.submit = lambda frame: self.process.do(lambda: self._take(caller, frame))

    def link(self, far: Far, capacity: ReportedCapacity, send: Callable[[Batches], None]) -> None:
        """The replica is connected; `send` brings it frames."""

        def waiting() -> tuple[int, int, bool]:
            return pending(far) if far.has_unsent_runs else (0, far.owed, False)

        def cut(_most: int) -> tuple[Batches, float]:
            batches = self.core.cut_frame(far, _MAX_FRAME_CALLS, _MAX_FRAME_BYTES)
            return batches, self._cost(sum(len(batch.payloads) for batch in batches))

        pump = self._links[far] = Pump(self._kernel, self.process, waiting, cut, send)
        self.to_replicas.append(pump)
        self._carry_out(self.core.step(LinkOpened(far, capacity), self._kernel.now))

    def answered(
        self,
        far: Far,
        run_ids: list[int],
        payloads: list[bytes],
        capacity: ReportedCapacity,
        times: dict[str, MethodTime],
    ) -> None:
        """A frame of results arrives, perhaps with what the replica says of its methods."""

        def take() -> tuple[float, Then]:
            return self._cost(len(run_ids)), complete

        def complete() -> None:
            if times:
                self.core.step(ServiceTimesReported(far, times), self._kernel.now)
            self._are_quick = far.is_quick(_OPTIONS.method)
            self._carry_out(
                self.core.step(RunsCompleted(far, [(run_ids, payloads, "")], [], capacity), self._kernel.now)
            )
            if far.has_unsent_runs:
                self._links[far].wake()

        self.process.do(take)

    def _take(self, caller: Caller, ids: range) -> tuple[float, Then]:
        batch = (_OPTIONS, ids, [payload_of(call) for call in ids])
        return self._cost(len(ids)), lambda: self._carry_out(
            self.core.step(CallsSubmitted(caller, ENDPOINT, [batch]), self._kernel.now)
        )

    def _cost(self, calls: int) -> float:
        return self._costs.message_s + calls * self._costs.router_s

    def _carry_out(self, commands: Sequence[RouterCommand]) -> None:
        for command in commands:
            match command:
                case Flush(replica=far):
                    self._links[far].wake()
                case DeliverResults(caller=caller, ids=ids):
                    outcomes, pump = self._outcomes[caller]
                    outcomes.extend(ids)
                    pump.wake()
                case _:
                    raise Violation(f"{command} without cancels, failures and changes of the table")
        when = self.core.next_deadline()
        if when is not None and when < self._timer_at:
            self._timer_at = when
            self._kernel.at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        if when == self._timer_at:
            self._timer_at = inf
            self._carry_out(self.core.step(RouterTimePassed(), self._kernel.now))
