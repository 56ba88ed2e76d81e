"""One router: its real core between virtual links, and one caller.

Purpose: what the dispatcher, its streams and its links do, on virtual time.
Owner: the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverFailure, DeliverResults, Flush, OpenLink, RouterCommand
from router_service.core.events import (
    CallsSubmitted,
    CapacityReported,
    HandlerStateReported,
    LinkOpened,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    TableReceived,
)
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from simulation.ledger import Violation
from simulation.payloads import call_of, payload_of
from slotmesh.streams.chunks import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_service.core.balancers import OwnBalancer
    from router_service.core.limits.capacity import ReportedCapacity
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.replica import RoutedReplica as Far
    from router_service.core.routing_table import RoutingTable
    from simulation.kernel import Kernel
    from simulation.ledger import SimulationLedger
    from slotmesh.errors import Failure

MAX_FRAME_CALLS = 16_384
MAX_FRAME_BYTES = 1024 * 1024
_OPTIONS = RouterCallOptions()


class LinkToReplica(Protocol):
    """The way to one replica."""

    def send(self, batches: Sequence[OutgoingBatch]) -> None:
        """A frame leaves the router."""


class QueuesRouter:
    """Takes calls, and brings them to replicas."""

    def __init__(
        self,
        kernel: Kernel,
        ledger: SimulationLedger,
        chance: Callable[[], float],
        address: str = "",
        subset_size: int = 0,
    ) -> None:
        """`chance` draws uniformly from [0, 1)."""
        self.core = RouterScheduler(chance, subset_size=subset_size)
        self._address = address
        self.links: dict[Far, LinkToReplica] = {}
        self.frames_to: Callable[[Far, Sequence[OutgoingBatch]], None] = lambda _replica, _batches: None
        """Called with each frame that leaves."""
        self._kernel = kernel
        self._ledger = ledger
        self._caller = Caller(Window(calls=2**53, bytes=2**53))
        self._timer_at = inf

    def apply(self, table: RoutingTable) -> list[Far]:
        """Takes the table; returns the replicas to connect to."""
        commands = self.core.step(TableReceived(table, self._address), self._kernel.now)
        return [command.replica for command in commands if isinstance(command, OpenLink)]

    def balance_by(self, balancer: OwnBalancer[Far]) -> None:
        """Replaces the balancers before any link is open: for balancers that no table can name."""
        for backend in self.core.topology.backends.values():
            backend.balancer = balancer

    def submit(self, endpoint: str, calls: range, options: RouterCallOptions = _OPTIONS) -> None:
        """A batch arrives."""
        ids = range(calls.start + 1, calls.stop + 1)
        batch = (options, ids, [payload_of(call) for call in calls])
        self._carry_out(self.core.step(CallsSubmitted(self._caller, endpoint, [batch]), self._kernel.now))

    # -- replicas --------------------------------------------------------------------------------------------------

    def link_up(self, replica: Far, capacity: ReportedCapacity) -> None:
        self._carry_out(self.core.step(LinkOpened(replica, capacity), self._kernel.now))

    def capacity_changed(self, replica: Far, capacity: ReportedCapacity) -> None:
        self._carry_out(self.core.step(CapacityReported(replica, capacity), self._kernel.now))

    def handler_state_changed(self, event: HandlerStateReported) -> None:
        self._carry_out(self.core.step(event, self._kernel.now))

    def completed(
        self,
        replica: Far,
        results: Sequence[tuple[list[int], list[bytes], str]],
        failed: Sequence[tuple[list[int], Failure]],
        capacity: ReportedCapacity,
    ) -> None:
        self._carry_out(self.core.step(RunsCompleted(replica, results, failed, capacity), self._kernel.now))

    def refused(self, replica: Far, run_ids: list[int], failure: Failure, capacity: ReportedCapacity) -> None:
        self._ledger.refused(len(run_ids), self._kernel.now)
        self._carry_out(self.core.step(RunsRefused(replica, run_ids, failure, capacity), self._kernel.now))

    # -- decisions -------------------------------------------------------------------------------------------------

    def _carry_out(self, commands: list[RouterCommand]) -> None:
        for command in commands:
            match command:
                case Flush(replica=replica):
                    self._flush(replica)
                case DeliverResults(ids=ids, payloads=payloads):
                    for call_id, payload in zip(ids, payloads, strict=True):
                        if (answered := call_of(joined(payload))) != call_id - 1:
                            raise Violation(f"call {call_id - 1} has the result of call {answered}")
                        self._ledger.settled(call_id - 1, self._kernel.now, failed=False)
                case DeliverFailure(ids=ids):
                    for call_id in ids:
                        self._ledger.settled(call_id - 1, self._kernel.now, failed=True)
                case _:
                    raise Violation(f"{command} without cancels and changes of the table")
        when = self.core.next_deadline()
        if when is not None and when < self._timer_at:
            self._timer_at = when
            self._kernel.at(when, self._expire, when)

    def _flush(self, replica: Far) -> None:
        """The link can always write: a frame at once, until the outbox is empty."""
        link = self.links[replica]
        while batches := self.core.cut_frame(replica, MAX_FRAME_CALLS, MAX_FRAME_BYTES):
            self._ledger.sent(sum(len(batch.payloads) for batch in batches), self._kernel.now)
            self.frames_to(replica, batches)
            link.send(batches)

    def _expire(self, when: float) -> None:
        if when == self._timer_at:
            self._timer_at = inf
            self._carry_out(self.core.step(RouterTimePassed(), self._kernel.now))
