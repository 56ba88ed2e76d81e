"""How runs begin: on arrival, when their payloads are complete, or when the fate of an earlier sending is known.

Invariants: a run begins once. A call submitted after a failure of its key and generation fails with it.
Owner: the scheduler, which follows up calls that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import TypeVar

from router_service.core import failures
from router_service.core.callers import Caller
from router_service.core.calls import Batch, KeyedBatch, PartitionColumn
from router_service.core.counters import RouterCounters
from router_service.core.events import (
    CallFailedAtEdge,
    CallsResent,
    CallsSubmitted,
    ChunkArrived,
    ResultsRequested,
    UploadCompleted,
    UploadFailed,
)
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.uploads import HeldUploads
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition, RoutedEndpoint
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun
from router_service.core.tenants import TenantBook
from slotmesh.calls.trace_context import Traces, traces_of_calls
from slotmesh.streams.chunks import Announced


class ColumnIntake:
    """Sends calls of many ordering keys that need not wait to their owners: one run per owner instead of one per key.

    Purpose: most keyed calls find nothing ahead of them. Then only the partition of each call and its owner have to be
    looked up; everything else is done once for all of them.
    Invariants: a call is sent this way only if nothing of its partition waits, and the owner takes calls and has room.
    If one call of a partition is not, none behind it in the batch is; so no call of a key overtakes another.
    """

    def __init__(
        self, numbers: Iterator[int], topology: Topology, sender: Sender, intake: RoutingIntake, tenants: TenantBook
    ) -> None:
        """`numbers` are the ages of runs."""
        self._tenants = tenants
        self._numbers = numbers
        self._topology = topology
        self._sender = sender
        self._intake = intake

    def send(
        self, batch: KeyedBatch, caller: Caller, endpoint: RoutedEndpoint, traces: Traces | None, now: float
    ) -> Sequence[int]:
        """Sends the calls that need not wait. Returns the indices of the others, ascending."""
        partitions, going, staying = self._divide(batch, endpoint)
        all_payloads = batch.payloads if len(going) == 1 and not staying else list(batch.payloads)
        for owner, indices in going.items():
            is_all = len(indices) == len(batch.keys)
            keys = batch.keys if is_all else _pick(batch.keys, indices)
            own = partitions if is_all else _pick(partitions, indices)
            ids = batch.ids if is_all else _pick(batch.ids, indices)
            payloads = all_payloads if is_all else _pick(all_payloads, indices)
            run = RouterRun(next(self._numbers), caller, endpoint.name, batch.options, ids, payloads, now)
            run.traces = traces_of_calls(traces, ids) if traces is not None else None
            run.partition = run.column = PartitionColumn(keys, own, [each.epoch for each in own], batch.options_of)
            caller.runs[run] = None
            if batch.options.tenant:
                self._tenants.count(run, now)
            self._sender.send(run, len(keys), owner, 0, now)
            self._intake.watch(run)
        return staying

    def _divide(
        self, batch: KeyedBatch, endpoint: RoutedEndpoint
    ) -> tuple[list[Partition], dict[RoutedReplica, list[int]], list[int]]:
        """The partition of each call; the indices of the calls to send, by owner; and the indices of the others."""
        known, replicas = endpoint.partitions, self._topology.replicas
        partitions: list[Partition] = []
        going: dict[RoutedReplica, list[int]] = {}
        rooms: dict[RoutedReplica, int] = {}
        staying: list[int] = []
        for at, number in enumerate(batch.partitions):
            partition = known.get(number) or endpoint.partition(number, replicas)
            partitions.append(partition)
            owner = partition.owner
            if owner is None or partition.queue.runs or not partition.sendable:
                staying.append(at)
                continue
            indices = going.get(owner)
            if indices is None:
                rooms[owner] = owner.keyed_room
                indices = going[owner] = []
            if len(indices) < rooms[owner]:
                indices.append(at)
            else:
                staying.append(at)
        return partitions, {owner: indices for owner, indices in going.items() if indices}, staying


T = TypeVar("T")


def _pick(column: Sequence[T], indices: list[int]) -> list[T]:
    return [column[indices[0]]] if len(indices) == 1 else list(itemgetter(*indices)(column))


class Submissions:
    """Begins each run of calls, or fails it."""

    def __init__(
        self,
        numbers: Iterator[int],
        counters: RouterCounters,
        topology: Topology,
        outcomes: CallerOutcomes,
        intake: RoutingIntake,
        resumptions: Resumptions,
        uploads: HeldUploads,
        *,
        columns: ColumnIntake,
        tenants: TenantBook,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._topology = topology
        self._outcomes = outcomes
        self._intake = intake
        self._resumptions = resumptions
        self._uploads = uploads
        self._columns = columns
        self._tenants = tenants

    def submitted(self, event: CallsSubmitted, now: float) -> None:
        """Each batch becomes a run, and begins as soon as its payload is complete."""
        caller, endpoint = event.caller, event.endpoint
        label, numbers, runs = (self._counters.label(endpoint),), self._numbers, caller.runs
        calls, uploads, traces = self._counters.calls, self._uploads.lines, event.traces
        for options, ids, payloads in self._sent_straight(event, now):
            run = RouterRun(next(numbers), caller, endpoint, options, ids, payloads, now)
            if traces is not None:
                run.traces = traces_of_calls(traces, ids)
            calls[label] += len(payloads)
            runs[run] = None
            if options.tenant and not self._admit_tenant(run, now):
                continue
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
            elif not (uploads or type(payloads[0]) is Announced) or not self._holds_back(run, now):
                self.begin(run, now)

    def _sent_straight(self, event: CallsSubmitted, now: float) -> Iterator[Batch]:
        """Sends the calls of many keys that need not wait. Yields all others, in order, a batch for each key."""
        for batch in event.batches:
            if not isinstance(batch, KeyedBatch):
                yield batch
                continue
            staying: Sequence[int] = range(len(batch.keys))
            endpoint = self._topology.endpoint(event.endpoint)
            if endpoint is not None and self._may_go_straight(event.caller, batch, endpoint):
                staying = self._columns.send(batch, event.caller, endpoint, event.traces, now)
                label = (self._counters.label(event.endpoint),)
                self._counters.calls[label] += len(batch.keys) - len(staying)
            yield from batch.by_key(staying)

    def _admit_tenant(self, run: RouterRun, now: float) -> bool:
        """Fails the calls that pass a limit of their tenant. Returns whether any is left."""
        endpoint = self._topology.endpoint(run.endpoint)
        admitted, failure = self._tenants.enter(run, None if endpoint is None else endpoint.route.tenants, now)
        if failure is not None:
            self._outcomes.fail_waiting(run, failure, keep=admitted)
        return admitted > 0

    def _may_go_straight(self, caller: Caller, batch: KeyedBatch, endpoint: RoutedEndpoint) -> bool:
        """Whether only the partitions have to be looked up key by key."""
        session = caller.session
        return (
            batch.options.timeout_s > 0
            and not self._uploads.lines
            and not endpoint.traffic.shadows
            and not (batch.options.tenant and endpoint.route.tenants)
            and (session is None or not (session.is_suspended or self._resumptions.is_open(session)))
        )

    def resent(self, event: CallsResent, now: float) -> None:
        """The same for calls that were sent before, which may be at a replica already."""
        caller, endpoint = event.caller, event.endpoint
        label = (self._counters.label(endpoint),)
        for options, ids, payloads in event.batches:
            run = RouterRun(next(self._numbers), caller, endpoint, options, ids, payloads, now - event.age_s)
            run.may_have_run = True
            run.first_roster = event.first_roster
            if event.traces is not None:
                run.traces = traces_of_calls(event.traces, ids)
            self._counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if options.tenant:
                self._tenants.count(run, now)
            if options.streaming:
                self._outcomes.fail_waiting(run, failures.NOT_RESUMED)
                continue
            self._resumptions.resent(run)
            if not self._holds_back(run, now):
                self.begin(run, now)

    def failed_at_edge(self, event: CallFailedAtEdge, _now: float) -> None:
        """Later calls of its key and generation fail when it is their turn to begin."""
        event.caller.stop(event.ordering_key, event.stop_generation, event.call_id)

    def begin(self, run: RouterRun, now: float) -> None:
        """The run is complete and its turn has come: recover it from replicas that may have it, or route it."""
        options, caller = run.options, run.caller
        if options.stop_generation and caller.has_stopped(options.ordering_key, options.stop_generation, run.ids[0]):
            self._outcomes.fail_waiting(run, failures.PREDECESSOR_FAILED)
            return
        if caller.session is not None and self._resumptions.take(run, now, resent=run.may_have_run):
            return
        endpoint = self._topology.endpoint(run.endpoint)
        # Drawn before, sent after the primary: a shadow takes nothing that the caller could have had.
        may_be_copied = not (run.may_have_run or options.takes_requests)
        is_copied = endpoint is not None and endpoint.traffic.shadows and may_be_copied
        copies = self._intake.draw_copies(run, endpoint) if endpoint is not None and is_copied else ()
        self._intake.route(run, now)
        for copy in copies:
            self._intake.send_copy(copy, now)

    def results_requested(self, event: ResultsRequested, now: float) -> None:
        """Asks the replica that keeps the results for them."""
        caller, answered = event.caller, event.answered
        options = replace(answered.options, partition=-1, timeout_s=inf)
        payloads = [b""] * len(answered.ids)
        run = RouterRun(next(self._numbers), caller, event.endpoint, options, answered.ids, payloads, now)
        run.may_have_run = run.was_answered = True
        caller.runs[run] = None
        if answered.replica.linked:
            self._intake.recover(run, answered.replica, now)
        else:
            self._outcomes.fail_waiting(run, failures.result_evicted(answered.replica))

    def _holds_back(self, run: RouterRun, now: float) -> bool:
        """Whether the run waits for payloads, or fails because there is no room for them."""
        if failure := self._uploads.refuse(run):
            self._outcomes.fail_waiting(run, failure)
        elif self._uploads.take(run, now):
            self._intake.watch(run)
        else:
            return False
        return True


class UploadArrivals:
    """Starts calls whose payloads have arrived, and fails those whose payloads will not arrive."""

    def __init__(self, outcomes: CallerOutcomes, uploads: HeldUploads, submissions: Submissions) -> None:
        self._outcomes = outcomes
        self._uploads = uploads
        self._submissions = submissions

    def chunk_arrived(self, event: ChunkArrived, now: float) -> None:
        """Bytes of a payload have arrived."""
        self._uploads.received(event.caller, event.call_id, event.size, now)

    def completed(self, event: UploadCompleted, now: float) -> None:
        """The call begins, and the calls that waited behind it."""
        for run in self._uploads.complete(event.caller, event.call_id, event.payload):
            self._submissions.begin(run, now)

    def failed(self, event: UploadFailed, _now: float) -> None:
        """The call fails."""
        run = self._uploads.find(event.caller, event.call_id)
        if run is not None:
            self._outcomes.fail_waiting(run, event.failure)
