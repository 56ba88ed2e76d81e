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
from router_service.core.calls import Batch, KeyedBatch, PartitionColumn
from router_service.core.commands import Step
from router_service.core.counters import RouterCounters
from router_service.core.events import CallsResent, CallsSubmitted, ResultsRequested
from router_service.core.lifecycle.feature import Features
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition, RoutedEndpoint
from router_service.core.run_states import Earlier
from router_service.core.runs import Caller, RouterRun
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

    def __init__(self, numbers: Iterator[int], intake: RoutingIntake, tenants: TenantBook) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._topology = intake.topology
        self._sender = intake.sender
        self._intake = intake
        self._tenants = tenants

    def send(
        self, batch: KeyedBatch, caller: Caller, endpoint: RoutedEndpoint, traces: Traces | None, step: Step
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
            run = RouterRun(next(self._numbers), caller, endpoint.name, batch.options, ids, payloads, step.now)
            run.traces = traces_of_calls(traces, ids) if traces is not None else None
            run.partition = PartitionColumn(keys, own, [each.epoch for each in own], batch.options_of)
            caller.runs[run] = None
            if batch.options.tenant:
                self._tenants.count(run, step.now)
            self._sender.send(run, len(keys), owner, 0, step)
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
            is_behind = partition.queue.runs or batch.keys[at] in partition.lanes
            if owner is None or is_behind or not partition.sendable:
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
        intake: RoutingIntake,
        tenants: TenantBook,
        features: Features,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._topology = intake.topology
        self._outcomes = intake.outcomes
        self._intake = intake
        self._tenants = tenants
        self._features = features
        self._columns = ColumnIntake(numbers, intake, tenants)

    def submitted(self, event: CallsSubmitted, step: Step) -> None:
        """Each batch becomes a run, and begins as soon as its payload is complete."""
        caller, endpoint, traces, now = event.caller, event.endpoint, event.traces, step.now
        label, numbers, runs = (self._counters.label(endpoint),), self._numbers, caller.runs
        calls, arrives = self._counters.calls, self._features.arrives
        for options, ids, payloads in self._sent_straight(event, step):
            run = RouterRun(next(numbers), caller, endpoint, options, ids, payloads, now)
            if traces is not None:
                run.traces = traces_of_calls(traces, ids)
            calls[label] += len(payloads)
            runs[run] = None
            if options.tenant and not self._admit_tenant(run, step):
                continue
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.deadline_in_queue(run), step)
            else:
                for under_way, hook in arrives:
                    if (under_way or type(payloads[0]) is Announced) and hook(run, step):
                        self._intake.watch(run)
                        break
                else:
                    self.begin(run, step)

    def _sent_straight(self, event: CallsSubmitted, step: Step) -> Iterator[Batch]:
        """Sends the calls of many keys that need not wait. Yields all others, in order, a batch for each key."""
        for batch in event.batches:
            if not isinstance(batch, KeyedBatch):
                yield batch
                continue
            staying: Sequence[int] = range(len(batch.keys))
            endpoint = self._topology.endpoint(event.endpoint)
            if endpoint is not None and self._may_go_straight(event.caller, batch, endpoint):
                staying = self._columns.send(batch, event.caller, endpoint, event.traces, step)
                label = (self._counters.label(event.endpoint),)
                self._counters.calls[label] += len(batch.keys) - len(staying)
            yield from batch.by_key(staying)

    def _admit_tenant(self, run: RouterRun, step: Step) -> bool:
        """Fails the calls that pass a limit of their tenant. Returns whether any is left."""
        endpoint = self._topology.endpoint(run.endpoint)
        admitted, failure = self._tenants.enter(run, None if endpoint is None else endpoint.route.tenants, step.now)
        if failure is not None:
            self._outcomes.fail_waiting(run, failure, step, keep=admitted)
        return admitted > 0

    def _may_go_straight(self, caller: Caller, batch: KeyedBatch, endpoint: RoutedEndpoint) -> bool:
        """Whether only the partitions have to be looked up key by key."""
        return (
            batch.options.timeout_s > 0
            and not endpoint.traffic.shadows
            and not (batch.options.tenant and endpoint.route.tenants)
            and not any(hook(caller) for hook in self._features.holds_keys)
        )

    def resent(self, event: CallsResent, step: Step) -> None:
        """The same for calls that were sent before, which may be at a replica already."""
        caller, endpoint = event.caller, event.endpoint
        label = (self._counters.label(endpoint),)
        for options, ids, payloads in event.batches:
            run = RouterRun(next(self._numbers), caller, endpoint, options, ids, payloads, step.now - event.age_s)
            run.earlier = Earlier.UNKNOWN
            run.first_roster = event.first_roster
            if event.traces is not None:
                run.traces = traces_of_calls(event.traces, ids)
            self._counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if options.tenant:
                self._tenants.count(run, step.now)
            if options.streaming:
                self._outcomes.fail_waiting(run, failures.NOT_RESUMED, step)
                continue
            for hook in self._features.resent:
                hook(run)
            if not self._is_held_back(run, step):
                self.begin(run, step)

    def begin(self, run: RouterRun, step: Step) -> None:
        """The run is complete and its turn has come: it is routed, unless a feature keeps it."""
        if run.session is not None or run.options.stop_generation:
            for under_way, hook in self._features.follows:
                if under_way and hook(run, step):
                    return
        for under_way, hook in self._features.begins:
            if under_way and hook(run, step):
                return
        self._intake.route(run, step)

    def results_requested(self, event: ResultsRequested, step: Step) -> None:
        """Asks the replica that keeps the results for them."""
        caller, answered = event.caller, event.answered
        options = replace(answered.options, partition=-1, timeout_s=inf)
        payloads = [b""] * len(answered.ids)
        run = RouterRun(next(self._numbers), caller, event.endpoint, options, answered.ids, payloads, step.now)
        run.earlier = Earlier.FETCHED
        caller.runs[run] = None
        if answered.replica.linked:
            self._intake.recover(run, answered.replica, step)
        else:
            self._outcomes.fail_waiting(run, failures.result_evicted(answered.replica), step)

    def _is_held_back(self, run: RouterRun, step: Step) -> bool:
        """Whether a feature keeps the run for now, or has ended it."""
        for under_way, hook in self._features.arrives:
            if (under_way or type(run.payloads[0]) is Announced) and hook(run, step):
                self._intake.watch(run)
                return True
        return False
