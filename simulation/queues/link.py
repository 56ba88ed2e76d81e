"""One router's connection to one replica: a constant delay both ways, first in, first out.

Purpose: frames on their way, and what a replica has to say to a router until the end of an event.
Invariants: as in the replica's outbox, a frame carries the capacity of the moment at which it leaves; refusals leave
before results; a capacity frame leaves only where nothing else takes it along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replica_service.core.runs import RouterPeer as ReplicaSide
from router_service.core.events import ServiceTimesReported
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from simulation.queues.replica import QueuesReplica
from simulation.queues.router import QueuesRouter

if TYPE_CHECKING:
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.replica import RoutedReplica as RouterSide
    from simulation.kernel import Kernel
    from slotmesh.errors import Failure


class QueuesLink:
    """Both ends, and what travels between them."""

    def __init__(
        self, router: QueuesRouter, far: RouterSide, replica: QueuesReplica, kernel: Kernel, delay: float
    ) -> None:
        self.router = router
        self.far = far
        """The replica in the router's core."""
        self.replica = replica
        self.near = ReplicaSide(self)
        """The router in the replica's core."""
        self._kernel = kernel
        self._delay = delay
        self._results: tuple[list[int], list[bytes]] = ([], [])
        self._failed: list[tuple[list[int], Failure]] = []
        self._refused: list[tuple[list[int], Failure]] = []
        self._is_pending = False
        self._times_told = 0
        """The version of the replica's service times that the router has."""

    def open(self) -> None:
        """The replica says what it can take, before anything else."""
        self.router.link_up(self.far, self._capacity())

    # -- down ------------------------------------------------------------------------------------------------------

    def send(self, batches: Sequence[OutgoingBatch]) -> None:
        """A frame leaves the router."""
        self._plan(self._arrive, batches)

    def _arrive(self, batches: Sequence[OutgoingBatch]) -> None:
        self.replica.receive(self.near, batches)

    # -- up --------------------------------------------------------------------------------------------------------

    def answer(self, run_id: int, payload: bytes) -> None:
        """A call ended well."""
        self._results[0].append(run_id)
        self._results[1].append(payload)
        self._pend()

    def fail(self, run_ids: list[int], failure: Failure) -> None:
        """Calls failed alike."""
        self._failed.append((run_ids, failure))
        self._pend()

    def refuse(self, run_ids: list[int], failure: Failure) -> None:
        """Calls were not taken."""
        self._refused.append((run_ids, failure))
        self._pend()

    def tell_capacity(self) -> None:
        """The router should hear of the capacity."""
        self._pend()

    def flush(self) -> None:
        """All that is to be said leaves the replica."""
        self._is_pending = False
        has_results = bool(self._results[0] or self._failed)
        if not has_results and not self._refused:
            self.replica.ledger.pushes += 1
            self._plan(self._tell, self._capacity())
        for run_ids, failure in self._refused:
            self._plan(self._hand_back, (run_ids, failure, self._capacity()))
        self._refused.clear()
        times = self.replica.core.service_times
        if self._times_told != times.version:
            self._times_told = times.version
            told = {each.method: MethodTime(each.service_s, each.batch_size) for each in times.reported}
            self._plan(self._tell_times, told)
        if has_results:
            self._plan(self._bring, (self._results, self._failed, self._capacity()))
            self._results, self._failed = ([], []), []

    def _tell(self, capacity: ReportedCapacity) -> None:
        self.router.capacity_changed(self.far, capacity)

    def _tell_times(self, times: dict[str, MethodTime]) -> None:
        self.router.core.step(ServiceTimesReported(self.far, times), self._kernel.now)

    def _hand_back(self, frame: tuple[list[int], Failure, ReportedCapacity]) -> None:
        self.router.refused(self.far, *frame)

    def _bring(
        self, frame: tuple[tuple[list[int], list[bytes]], list[tuple[list[int], Failure]], ReportedCapacity]
    ) -> None:
        (run_ids, payloads), failed, capacity = frame
        self.router.completed(self.far, [(run_ids, payloads, "")] if run_ids else [], failed, capacity)

    def _pend(self) -> None:
        if not self._is_pending:
            self._is_pending = True
            self.replica.pending.append(self)

    def _plan(self, action: Any, argument: Any) -> None:
        self._kernel.at(self._kernel.now + self._delay, action, argument)

    def _capacity(self) -> ReportedCapacity:
        told = self.replica.core.capacity(self.near)
        return ReportedCapacity(told.max_ongoing, told.prefetch, told.others, told.keyed_window, told.draining)
