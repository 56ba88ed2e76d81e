"""Broadcasts: one call for each replica of an endpoint, or of one of its backends.

Purpose: handlers drop caches or load weights on all replicas. The replicas are those that the table lists as not
draining when the broadcast arrives, in the subset of this router or not, suspect or not.
Invariants: each replica's call has one outcome, and is sent to no other replica, nor again once a replica may have
executed it. No balancer, traffic policy, shadow or queue decides about it; it waits for room at its replica, ahead of
the backend's queue, until its deadline. A replica that drains, or is removed, fails what was not sent to it. Of each
broadcast, at most `MAX_UNDER_WAY` calls are at replicas or have results that the client has not taken; fewer if
results are large. A call that has not been sent when its caller leaves is never sent.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from router_service.core import failures
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverFailure, DeliverTargets, Step
from router_service.core.counters import BroadcastEnd, RouterCounters
from router_service.core.events import RouterEvent
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import RoutedEndpoint, no_version
from router_service.core.run_states import RunEvent
from router_service.core.runs import Caller, RouterRun, Sent
from router_service.core.tenants import TenantBook
from slotmesh.calls.payload_block import nbytes_of
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Failure, Reason
from slotmesh.streams.chunks import Payload

MAX_TARGETS = 1_000
"""Replicas of one broadcast."""
MAX_UNDER_WAY = 64
MAX_RESULT_BYTES = 32 * 1024 * 1024
"""Results of the largest size so far, for as many calls as are under way; at least one is."""


class PinnedRun(RouterRun):
    """One call for one replica. It is sent to no other one."""

    __slots__ = ("target",)

    target: RoutedReplica

    def slice(
        self, lo: int, hi: int, *, attempt: int | None = None, options: RouterCallOptions | None = None
    ) -> RouterRun:
        """The same call again, with nothing sent: its replica has handed it back."""
        ids, payloads = self.ids[lo:hi], self.payloads[lo:hi]
        part = PinnedRun(self.seq, self.caller, self.endpoint, options or self.options, ids, payloads, self.arrived)
        part.target, part.tenant, part.traces = self.target, self.tenant, self.traces
        part.attempt = self.attempt if attempt is None else attempt
        return part


class _Broadcast:
    """What one broadcast has not finished."""

    __slots__ = ("endpoint", "has_failed", "largest", "left", "under_way", "waiting")

    def __init__(self, endpoint: str, calls: int) -> None:
        self.endpoint = endpoint
        self.left = calls
        """Calls without an outcome."""
        self.has_failed = False
        """One of the others failed."""
        self.waiting: dict[PinnedRun, None] = {}
        """Calls that were not sent, in order."""
        self.under_way: set[int] = set()
        """Ids of calls that were sent, and whose outcomes the client has not taken."""
        self.largest = 1
        """Bytes of the largest result so far."""

    @property
    def end(self) -> BroadcastEnd:
        """How it ends if its caller leaves now."""
        if self.left:
            return BroadcastEnd.CANCELLED
        return BroadcastEnd.FAILED if self.has_failed else BroadcastEnd.COMPLETED

    @property
    def has_room(self) -> bool:
        return len(self.under_way) < max(1, min(MAX_UNDER_WAY, MAX_RESULT_BYTES // self.largest))


class Broadcasts(Feature):
    """All broadcasts that are not finished, by caller: each has a caller of its own."""

    def __init__(
        self, numbers: Iterator[int], counters: RouterCounters, intake: RoutingIntake, tenants: TenantBook
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._intake = intake
        self._topology = intake.topology
        self._outcomes = intake.outcomes
        self._sender = intake.sender
        self._tenants = tenants
        self._open: dict[Caller, _Broadcast] = {}
        self._waiting: dict[RoutedReplica, dict[PinnedRun, None]] = {}
        """Calls of all broadcasts that were not sent, by replica."""

    @property
    def under_way(self) -> Collection[object]:
        """The broadcasts."""
        return self._open

    def requested(self, event: BroadcastRequested, step: Step) -> None:
        """Begins the calls, as far as there is room, and names the replicas to the caller."""
        caller, options = event.caller, replace(event.options, idempotent=False)
        endpoint = self._topology.endpoint(event.endpoint)
        found = self._no_endpoint(event) if endpoint is None else self._targets(event.backend, endpoint)
        if isinstance(found, Failure) or endpoint is None:
            refusal = found if isinstance(found, Failure) else failures.NO_TABLE
            self._counters.broadcast_ended(event.endpoint, BroadcastEnd.REFUSED)
            step.commands.append(DeliverFailure(caller, (), refusal, 0, endpoint=event.endpoint))
            return
        step.commands.append(DeliverTargets(caller, found))
        broadcast = self._open[caller] = _Broadcast(event.endpoint, len(found))
        self._counters.calls[self._counters.label(event.endpoint),] += len(found)
        for number, target in enumerate(found, 1):
            ids = range(number, number + 1)
            run = PinnedRun(next(self._numbers), caller, event.endpoint, options, ids, (event.payload,), step.now)
            run.target = target
            run.traces = None if event.trace is None else {number: event.trace}
            caller.runs[run] = None
            if options.tenant:
                _, refused = self._tenants.enter(run, endpoint.route.tenants, step.now)
                if refused is not None:
                    self._outcomes.fail_waiting(run, refused, step)
                    continue
            if run.deadline <= step.now:
                self._outcomes.fail_waiting(run, failures.deadline_in_queue(run), step)
            else:
                self._wait(broadcast, run, step)
        self._start(broadcast, step)

    def outcomes_taken(self, event: BroadcastOutcomesTaken, step: Step) -> None:
        """The client has these outcomes: others may be sent."""
        if (broadcast := self._open.get(event.caller)) is not None:
            broadcast.under_way.difference_update(event.ids)
            self._start(broadcast, step)

    def closed(self, event: BroadcastClosed, step: Step) -> None:
        self._close(event.caller, step)

    # -- as a feature ------------------------------------------------------------------------------------------------

    def left(self, caller: Caller, step: Step) -> None:
        """The caller's calls end next."""
        self._close(caller, step)

    def handed_back(self, run: RouterRun, step: Step) -> bool:
        """The replica has not taken the call: it waits for it again."""
        if not isinstance(run, PinnedRun):
            return False
        broadcast = self._open.get(run.caller)
        if broadcast is None:
            self._outcomes.fail_waiting(run, failures.CANCELLED, step)
        elif (failure := _ending(run.target)) is not None:
            self._outcomes.fail_waiting(run, failure, step)
        else:
            broadcast.under_way.discard(run.ids[0])
            self._wait(broadcast, run, step)
        return True

    def completed(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[Payload] | None, _type: str, _step: Step
    ) -> None:
        """Notes how large results are."""
        broadcast = self._open.get(sent.run.caller)
        if broadcast is None:
            return
        broadcast.left -= count
        if payloads is not None:
            broadcast.largest = max(broadcast.largest, nbytes_of(payloads, lo, lo + count))

    def failed(
        self, run: RouterRun, _begin: int, count: int, _failure: Failure, _sent: Sent | None, step: Step
    ) -> None:
        """It no longer waits, if it did."""
        if isinstance(run, PinnedRun) and (broadcast := self._open.get(run.caller)) is not None:
            self._forget(broadcast, run, step)
            broadcast.left -= count
            broadcast.has_failed = True

    def table_changed(self, step: Step) -> None:
        """Replicas may have been removed, or drain."""
        for replica in list(self._waiting):
            self._serve(replica, step)

    # -- in here -----------------------------------------------------------------------------------------------------

    def _targets(self, wanted: str, endpoint: RoutedEndpoint) -> tuple[RoutedReplica, ...] | Failure:
        """The replicas of the wanted backend, or of all, by backend and id."""
        names = endpoint.route.weights or {}
        if wanted and wanted not in names:
            return no_version(endpoint.name, wanted, names)
        shares = [wanted] if wanted else sorted(name for name, weight in names.items() if weight > 0)
        backends = [self._topology.backends[name] for name in shares if name in self._topology.backends]
        # Of two incarnations with one id, the one that can be reached.
        there = {
            (backend.name, each.replica_id): each
            for backend in backends
            for each in sorted(backend.replicas.values(), key=lambda it: it.linked)
            if not each.draining
        }
        return too_many(len(there)) if len(there) > MAX_TARGETS else tuple(there[key] for key in sorted(there))

    def _no_endpoint(self, event: BroadcastRequested) -> Failure:
        table = self._topology.table
        known = failures.no_endpoint(event.endpoint, table.endpoints, event.caller.knows)
        return known if table.revision else failures.NO_TABLE

    def _wait(self, broadcast: _Broadcast, run: PinnedRun, step: Step) -> None:
        """The call waits for room at its replica."""
        step.advance(run, RunEvent.HELD)
        target = run.target
        broadcast.waiting[run] = None
        self._waiting.setdefault(target, {})[run] = None
        self._sender.awaited[target] = self._serve
        target.link_users += 1
        self._topology.links.need(target, step)
        self._intake.watch(run)

    def _forget(self, broadcast: _Broadcast, run: PinnedRun, step: Step) -> None:
        if run not in broadcast.waiting:
            return
        del broadcast.waiting[run]
        target = run.target
        at_target = self._waiting[target]
        del at_target[run]
        if not at_target:
            del self._waiting[target], self._sender.awaited[target]
        self._topology.release_link(target, step)

    def _close(self, caller: Caller, step: Step) -> None:
        if (broadcast := self._open.pop(caller, None)) is not None:
            self._counters.broadcast_ended(broadcast.endpoint, broadcast.end)
            for run in list(broadcast.waiting):
                self._forget(broadcast, run, step)

    def _start(self, broadcast: _Broadcast, step: Step) -> None:
        """Sends calls of the broadcast whose replicas have room."""
        self._send(((broadcast, run) for run in list(broadcast.waiting)), step)

    def _serve(self, replica: RoutedReplica, step: Step) -> None:
        """Something about the replica has changed: sends what waits for it, or fails it."""
        waiting = list(self._waiting.get(replica, ()))
        if (failure := _ending(replica)) is not None:
            for run in waiting:
                self._outcomes.fail_waiting(run, failure, step)
            return
        self._send(((self._open[run.caller], run) for run in waiting), step)

    def _send(self, calls: Iterable[tuple[_Broadcast, PinnedRun]], step: Step) -> None:
        for broadcast, run in calls:
            target = run.target
            if broadcast.has_room and _room(target) > 0:
                broadcast.under_way.add(run.ids[0])
                step.advance(run, RunEvent.RELEASED)
                self._sender.send(run, 1, target, 0, step)
                self._forget(broadcast, run, step)
                target.backend.load_changed(target)


def _room(replica: RoutedReplica) -> int:
    """Unkeyed calls that it has room for, whether the balancer may pick it or not."""
    capacity = replica.capacity
    if not replica.linked or replica.draining:
        return 0
    return capacity.max_ongoing + capacity.prefetch - capacity.others - replica.own


def _ending(replica: RoutedReplica) -> Failure | None:
    """The failure of calls for a replica that starts no more of them; None while it may."""
    if replica.listed and not replica.draining:
        return None
    why = "drains" if replica.listed else "has ended"
    return Failure(
        reason=Reason.DRAINING,
        message=f"replica {replica.replica_id} {why}, and the call was not sent to it",
        metadata={"backend": replica.backend_name, "replica_id": replica.replica_id},
    )


def too_many(replicas: int) -> Failure:
    """The broadcast has more replicas than one may have."""
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"backend: a broadcast has at most {MAX_TARGETS} replicas, and there are {replicas}: name a backend",
        metadata={"field": "backend"},
    )


@dataclass(slots=True, eq=False)
class BroadcastRequested(RouterEvent):
    """A caller wants one call executed by each replica. Its calls have the ids 1, 2 and so on."""

    caller: Caller
    endpoint: str
    options: RouterCallOptions
    payload: Payload
    backend: str = ""
    """Only its replicas; empty: those of each backend with a share in the endpoint's policy."""
    trace: TraceContext | None = None


@dataclass(slots=True, eq=False)
class BroadcastOutcomesTaken(RouterEvent):
    """The client of a broadcast has taken the outcomes of these calls."""

    caller: Caller
    ids: Sequence[int]


@dataclass(slots=True, eq=False)
class BroadcastClosed(RouterEvent):
    """The rpc of a broadcast ends."""

    caller: Caller
