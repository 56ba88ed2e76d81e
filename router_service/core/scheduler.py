"""The router's decisions: which replica runs which calls, and what every caller hears.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than it said it can take, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from router_service.core.calls import Batch, Failures, Results, Run
from router_service.core.commands import Command, SendRun
from router_service.core.counters import UNKNOWN, Counters
from router_service.core.deadlines import DeadlineHeap
from router_service.core.outcomes import Outcomes, uncharge
from router_service.core.replicas import Capacity, Replica
from router_service.core.topology import Topology
from slotmesh.errors import Executed, Failure, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router_service.core.admission import Account
    from router_service.core.backends import Backend
    from router_service.core.callers import Caller
    from router_service.core.calls import Sent
    from router_service.core.partitions import Partition
    from router_service.core.table import RoutingTable


class Scheduler:
    """State of one router's data plane; single writer, never awaited inside."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` draws uniformly from [0, 1): the only randomness."""
        self._chance = chance
        self._seq = 0
        self._deadlines = DeadlineHeap()
        self._out: list[Command] = []
        self.counters = Counters()
        self._outcomes = Outcomes(self._out, self.counters)
        self.topology = Topology(self._out)

    # -- callers ---------------------------------------------------------------------------------------------------

    def submit(self, caller: Caller, endpoint: str, batches: Iterable[Batch], now: float) -> list[Command]:
        """Calls that passed the edge's checks."""
        known = endpoint in self.topology.endpoints
        for options, ids, payloads in batches:
            self._seq += 1
            run = Run(
                seq=self._seq,
                caller=caller,
                endpoint=endpoint,
                options=options,
                ids=ids,
                payloads=payloads,
                arrived=now,
            )
            if not known:
                run.label = UNKNOWN
            self.counters.calls[run.label,] += len(payloads)
            caller.runs[run] = None
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, _in_queue(run))
                continue
            if run.deadline != inf:
                self._deadlines.push(run.deadline, run)
            self._route(run)
        return self._commands()

    def cancel(self, caller: Caller) -> list[Command]:
        """The caller is gone: what it has not heard of is CANCELLED."""
        for run in list(caller.runs):
            self._cancel(run)
        return self._commands()

    # -- replicas --------------------------------------------------------------------------------------------------

    def link_up(self, replica: Replica, capacity: Capacity) -> list[Command]:
        """The replica is connected and has said what it can take."""
        if replica.listed:
            replica.linked = True
            self._learn(replica, capacity)
            replica.backend.changed(replica)
            for endpoint in self.topology.endpoints.values():
                for partition in endpoint.partitions.values():
                    if partition.owner is replica:
                        self._list(partition)
            self._pump(replica)
        return self._commands()

    def link_down(self, replica: Replica, why: str, unsent: Iterable[Sent] = ()) -> list[Command]:
        """The connection broke: what was sent and is not answered may have been executed; `unsent` was not sent."""
        untouched = list(unsent)
        returned = [part for sent in untouched for part in self._hand_back(sent, 0, sent.count)]
        failure = Failure(
            reason=Reason.REPLICA_LOST,
            message=f"the connection to replica {replica.replica_id} broke before it answered: {why}",
            executed=Executed.UNKNOWN,
            metadata=_whereabouts(replica),
        )
        lost = replica.lose()
        for sent in lost:
            for lo, count in sent.open_parts():
                self._outcomes.failed(sent, lo, count, failure)
            sent.run.sents.remove(sent)
        replica.backend.changed(replica)
        if not replica.draining:
            self.counters.link_failures[replica.backend.name,] += 1
        self._put_back(returned, replica.backend)
        for sent in (*lost, *untouched):
            self._settle_partition(sent)
        self._pump(replica)
        return self._commands()

    def capacity_changed(self, replica: Replica, capacity: Capacity) -> list[Command]:
        """The replica's load changed without a result."""
        self._learn(replica, capacity)
        self._pump(replica)
        return self._commands()

    def draining(self, replica: Replica) -> list[Command]:
        """The replica takes no more runs; what it has is answered or handed back."""
        replica.draining = True
        replica.backend.changed(replica)
        self._pump(replica)
        return self._commands()

    def completed(
        self,
        replica: Replica,
        results: Iterable[Results],
        failures: Iterable[Failures] = (),
        capacity: Capacity | None = None,
    ) -> list[Command]:
        """A result frame: calls that ended, and the replica's load after them."""
        outcomes = self._outcomes
        for ids, payloads, content_type in results:
            for sent, offset, at, count in replica.slices(ids):
                for lo, fresh in self._answer(sent, offset, count):
                    begin = at + lo - offset
                    part = payloads if fresh == len(payloads) else payloads[begin : begin + fresh]
                    outcomes.results(sent, lo, fresh, part, content_type, replica)
                if not sent.remaining:
                    self._settle_partition(sent)
        for ids, failure in failures:
            located = _located(failure, replica)
            for sent, offset, _, count in replica.slices(ids):
                for lo, fresh in self._answer(sent, offset, count):
                    outcomes.failed(sent, lo, fresh, located)
                if not sent.remaining:
                    self._settle_partition(sent)
        self._learn(replica, capacity)
        self._pump(replica)
        return self._commands()

    def refused(self, replica: Replica, ids: list[int], failure: Failure, capacity: Capacity) -> list[Command]:
        """The replica did not take these calls; nothing of them was executed. They go back by age."""
        returned: list[Run] = []
        refused: list[Sent] = []
        for sent, offset, _, count in replica.slices(ids):
            if sent.run.partition is not None:
                sent.run.partition.refused(sent.owner_epoch)
            returned += self._hand_back(sent, offset, count)
            if not sent.remaining:
                refused.append(sent)
        self.counters.refusals[replica.backend.name, failure.reason.value] += len(ids)
        self._learn(replica, capacity)
        self._put_back(returned, replica.backend)
        for sent in refused:
            self._settle_partition(sent)
        self._pump(replica)
        return self._commands()

    # -- configuration and time ------------------------------------------------------------------------------------

    def apply(self, table: RoutingTable) -> list[Command]:
        """A table from the controller; an older one changes nothing."""
        if table.supersedes(self.topology.table):
            for run in self.topology.apply(table):
                uncharge(run)
                self._route(run, admitted=True)
            for endpoint in self.topology.endpoints.values():
                for partition in endpoint.partitions.values():
                    self._list(partition)
            for replica in list(self.topology.replicas.values()):
                self._pump(replica)
        return self._commands()

    def next_deadline(self) -> float | None:
        """When the shell must call `expire`; None when nothing can expire."""
        return self._deadlines.next_deadline()

    def expire(self, now: float) -> list[Command]:
        """Fails every call whose deadline or queue time has passed."""
        for run in self._deadlines.pop_due(now):
            if run.deadline <= now:
                self._drop_waiting(run, _in_queue(run))
                for sent in list(run.sents):
                    self._outcomes.abandon(sent, _while_running(run, sent))
            elif run.waiting and run.account is not None:
                limit_s = run.account.max_queue_time_s
                if run.arrived + limit_s <= now:
                    self._drop_waiting(run, _queue_timeout(run, limit_s))
                else:
                    self._deadlines.push(run.arrived + limit_s, run)
        return self._commands()

    # -- the way in ------------------------------------------------------------------------------------------------

    def _route(self, run: Run, *, admitted: bool = False) -> None:
        """Finds the queue of a run and sends what can be sent. Runs `admitted` before are not refused for room."""
        endpoint = self.topology.endpoints.get(run.endpoint)
        if endpoint is None:
            self._outcomes.fail_waiting(run, self._no_endpoint(run.endpoint))
        elif run.options.partition >= 0:
            partition = run.partition = endpoint.partition(run.options.partition, self.topology.replicas)
            owner = partition.owner
            if owner is not None and partition.sendable and not partition.queue:
                self._send(run, owner.keyed_room, owner, partition.epoch)
            if run.waiting and self._admit(run, self._account_of(partition), admitted):
                partition.queue.append(run)
                self._list(partition)
        else:
            name = endpoint.draw(self._chance())
            backend = self.topology.backends.get(name) if name is not None else None
            if backend is None:
                if self._admit(run, endpoint.account, admitted):
                    endpoint.parked.append(run)
                return
            if not backend.queue:
                self._spread(run, backend)
            if run.waiting and self._admit(run, backend.account, admitted):
                backend.queue.append(run)

    def _account_of(self, partition: Partition) -> Account:
        """Who is charged for what waits in the partition."""
        owner = partition.owner
        return owner.backend.account if owner is not None else self.topology.endpoints[partition.endpoint].account

    def _admit(self, run: Run, account: Account, admitted: bool) -> bool:
        """Charges the waiting calls and fails those that do not fit. Returns whether any waits."""
        if admitted:
            account.charge_all(run)
        else:
            fits = account.charge(run)
            if fits < run.waiting:
                self._outcomes.fail_waiting(run, account.full(), keep=fits)
            if not fits:
                run.account = None
                return False
        self._deadlines.push(run.arrived + account.max_queue_time_s, run)
        return True

    def _put_back(self, runs: list[Run], backend: Backend) -> None:
        """Queues runs that came back by their age; newest first, so that each older one goes straight to the head."""
        for run in reversed(runs):
            if run.deadline != inf:
                self._deadlines.push(run.deadline, run)
            partition = run.partition
            if partition is not None and run.endpoint in self.topology.endpoints:
                self._admit(run, self._account_of(partition), admitted=True)
                partition.queue.put_back(run)
            elif partition is None and self.topology.backends.get(backend.name) is backend:
                self._admit(run, backend.account, admitted=True)
                backend.queue.put_back(run)
            else:
                run.partition = None
                self._route(run, admitted=True)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _spread(self, run: Run, backend: Backend) -> None:
        """Sends as much of the run as fits, in even shares over the replicas that take calls."""
        share = -(-run.waiting // max(1, backend.candidates))
        while run.waiting:
            replica = backend.balancer.pick()
            if replica is None:
                return
            self._send(run, min(share, replica.free), replica, 0)
            backend.balancer.changed(replica)

    def _pump(self, replica: Replica) -> None:
        """Starts what waits and can start now that something about the replica has changed."""
        while replica.ready and replica.keyed_room > 0:
            partition = replica.ready.popleft()
            run = partition.queue.head() if partition.owner is replica and partition.sendable else None
            if run is None:
                if partition.owner is replica:
                    partition.listed = False
                continue
            self._send(run, replica.keyed_room, replica, partition.epoch)
            if partition.queue:
                replica.ready.append(partition)
            else:
                partition.listed = False
        backend = replica.backend
        while (head := backend.queue.head()) is not None:
            self._spread(head, backend)
            if head.waiting:
                break
        if not replica.listed:
            self.topology.retire(replica)

    def _send(self, run: Run, room: int, replica: Replica, owner_epoch: int) -> None:
        count = min(run.waiting, room)
        if count <= 0:
            return
        if run.account is not None:
            run.account.release(run, count)
        sent = replica.send(run, count, owner_epoch)
        if run.partition is not None:
            run.partition.sent()
        self._out.append(SendRun(sent))

    def _list(self, partition: Partition) -> None:
        """Puts the partition among those that its owner serves in turn, if it has something to send."""
        if not partition.listed and partition.owner is not None and partition.queue and partition.sendable:
            partition.listed = True
            partition.owner.ready.append(partition)

    # -- the way back ----------------------------------------------------------------------------------------------

    def _answer(self, sent: Sent, offset: int, count: int) -> list[tuple[int, int]]:
        """The replica is done with these calls of the slice; returns those that it had not answered before."""
        fresh = sent.take(offset, count)
        sent.replica.answered(sent, sum(n for _, n in fresh))
        return fresh

    def _hand_back(self, sent: Sent, offset: int, count: int) -> list[Run]:
        """Takes calls of the slice back from the replica; returns those that somebody still waits for."""
        parts: list[Run] = []
        for lo, fresh in self._answer(sent, offset, count):
            if not sent.abandoned:
                part = sent.run.slice(sent.lo + lo, sent.lo + lo + fresh)
                self._outcomes.replaced(sent.run, fresh, part)
                parts.append(part)
        return parts

    def _settle_partition(self, sent: Sent) -> None:
        """No call of the slice is at its replica any more, and what came back is queued: a new owner may be served."""
        partition = sent.run.partition
        if partition is not None:
            partition.settled(sent.owner_epoch)
            if not partition.stale and partition.queue and not partition.listed:
                self._list(partition)
                if partition.listed and partition.owner is not None and partition.owner is not sent.replica:
                    self._pump(partition.owner)

    def _learn(self, replica: Replica, capacity: Capacity | None) -> None:
        if capacity is not None:
            replica.capacity = capacity
            if capacity.draining and not replica.draining:
                replica.draining = True
                replica.backend.changed(replica)
                return
        replica.backend.balancer.changed(replica)

    def _cancel(self, run: Run) -> None:
        self._drop_waiting(run, _CANCELLED)
        for sent in list(run.sents):
            self._outcomes.abandon(sent, _CANCELLED_RUNNING)

    def _drop_waiting(self, run: Run, failure: Failure) -> None:
        uncharge(run)
        self._outcomes.fail_waiting(run, failure)

    def _no_endpoint(self, name: str) -> Failure:
        if not self.topology.table.revision:
            return Failure(
                reason=Reason.BACKEND_UNAVAILABLE,
                message="the router has no routing table yet: its controller has not been reached",
                retry_delay_s=1.0,
            )
        known = ", ".join(sorted(self.topology.endpoints)[:8]) or "none yet"
        return Failure(
            reason=Reason.ENDPOINT_NOT_FOUND,
            message=f"no endpoint is named {name!r}; there is: {known}",
            metadata={"endpoint": name},
        )

    def _commands(self) -> list[Command]:
        out = self._out.copy()
        self._out.clear()
        return out


_CANCELLED = Failure(reason=Reason.CANCELLED, message="the caller took the call back before it was sent")
_CANCELLED_RUNNING = Failure(
    reason=Reason.CANCELLED,
    message="the caller took the call back after it was sent to a replica",
    executed=Executed.UNKNOWN,
)


def _in_queue(run: Run) -> Failure:
    return Failure(
        reason=Reason.DEADLINE_IN_QUEUE,
        message=f"the timeout of {run.options.timeout_s:g} s passed before the call was sent to a replica",
    )


def _while_running(run: Run, sent: Sent) -> Failure:
    return Failure(
        reason=Reason.DEADLINE_RUNNING,
        message=f"the timeout of {run.options.timeout_s:g} s passed at replica {sent.replica.replica_id}",
        executed=Executed.UNKNOWN,
        metadata=_whereabouts(sent.replica),
    )


def _queue_timeout(run: Run, limit_s: float) -> Failure:
    return Failure(
        reason=Reason.QUEUE_TIMEOUT,
        message=(
            f"the call waited for {limit_s:g} s, the backend's max_queue_time, and no replica took it; "
            "`slotmesh status` shows which replicas are ready"
        ),
        metadata={"endpoint": run.endpoint},
    )


def _whereabouts(replica: Replica) -> dict[str, str]:
    return {"backend": replica.backend.name, "replica_id": replica.replica_id}


def _located(failure: Failure, replica: Replica) -> Failure:
    return Failure(
        reason=failure.reason,
        message=failure.message,
        executed=failure.executed,
        retry_delay_s=failure.retry_delay_s,
        code=failure.code,
        metadata={**failure.metadata, **_whereabouts(replica)},
    )
