"""The way in: from a run of calls to the queue or replica that takes it, also again when backends change.

Purpose: admission -> traffic policy -> queue. Calls that a replica handed back, or whose queue was removed, come in
again here.
Invariants: a waiting run is charged to exactly one account and watched for its time in the queue. A run that was
admitted once is not refused for lack of room later.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from router_service.core import failures
from router_service.core.callers import Caller, Window
from router_service.core.commands import ReportLoad, RouterCommand
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.limits.admission import Account
from router_service.core.queueing.reservations import best_for, can_serve, constraint_of
from router_service.core.queueing.run_queues import SuspendedRuns
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition, RoutedEndpoint, named_backend_problem
from router_service.core.routing.topology import Topology
from router_service.core.routing.waiting_causes import why_not_load, why_unavailable
from router_service.core.runs import RouterRun
from router_service.core.sampling import Chance
from slotmesh.calls.deadline_heap import DeadlineHeap

NOT_OWNED = -1
"""The owner epoch of calls that are recovered from a replica which is no longer their owner."""


HOLD_S: Final = 30.0
"""How long calls of a session wait for their client to acknowledge the roster."""


class RoutingIntake:
    """Finds each run its place."""

    def __init__(
        self,
        out: list[RouterCommand],
        topology: Topology,
        outcomes: CallerOutcomes,
        deadlines: DeadlineHeap[RouterRun],
        sender: Sender,
        suspended: SuspendedRuns,
        chance: Chance,
    ) -> None:
        self._out = out
        self._topology = topology
        self._outcomes = outcomes
        self._deadlines = deadlines
        self._sender = sender
        self._suspended = suspended
        self._chance = chance
        self._no_caller = Caller(Window(0, 0))
        """The caller of all shadows: their outcomes are delivered to no client."""

    @property
    def copies(self) -> int:
        """Sampled copies at replicas."""
        return sum(copy.unanswered for copy in self._no_caller.runs)

    def route(self, run: RouterRun, now: float, *, admitted: bool = False) -> None:
        """Sends what can be sent and queues the rest. Runs `admitted` before are not refused for room."""
        endpoint = self._topology.endpoint(run.endpoint)
        if endpoint is None:
            failure = failures.no_endpoint(run.endpoint, self._topology.table.endpoints, run.caller.knows)
            self._outcomes.fail_waiting(run, failure if self._topology.table.revision else failures.NO_TABLE)
        elif run.session is not None and run.session.is_suspended:
            self.hold(run, now, admitted=admitted)
        elif run.slot is not None:
            self._reserve(run, endpoint, now, admitted=admitted)
        elif (
            run.options.backend and (wrong := named_backend_problem(run, endpoint, self._topology.backends)) is not None
        ):
            self._outcomes.fail_waiting(run, wrong)
        elif run.options.partition >= 0:
            self._to_partition(run, endpoint, now, admitted=admitted)
        elif run.options.backend:
            self._to_backend(run, run.options.backend, endpoint, now, admitted=admitted)
        elif endpoint.traffic.only is not None:
            self._to_backend(run, endpoint.traffic.only, endpoint, now, admitted=admitted)
        else:
            slices = self._slices(run, endpoint)
            if len(slices) == 1:
                self._to_backend(run, slices[0][0], endpoint, now, admitted=admitted)
            elif slices:
                for part, name in self._cut(run, slices):
                    self._to_backend(part, name, endpoint, now, admitted=admitted)
            else:
                self._without_share(run, endpoint, now, admitted=admitted)

    def hold(self, run: RouterRun, now: float, *, admitted: bool) -> None:
        """Keeps the run until its client knows all replicas that it could go to (`acknowledgements`)."""
        if run.session is None:
            raise ValueError("calls without a session need no acknowledgement")
        self._suspended.hold(run.session, run, now, is_admitted=admitted)
        self._deadlines.watch(min(run.deadline, now + HOLD_S), run)

    def recover(self, run: RouterRun, replica: RoutedReplica, now: float) -> None:
        """Asks the replica for the outcomes of calls that it has. Nothing of their keys is sent elsewhere meanwhile."""
        endpoint = self._topology.endpoint(run.endpoint)
        epoch = NOT_OWNED
        if endpoint is not None and run.options.partition >= 0:
            partition = run.partition = endpoint.partition(run.options.partition, self._topology.replicas)
            if partition.owner is replica:
                epoch = partition.epoch
        run.recovers = True
        self._sender.send(run, run.waiting, replica, epoch, now)
        # The replica may have more calls now than its capacity: no balancer chose it, the calls are there already.
        replica.backend.balancer.changed(replica)
        self.watch(run)

    def draw_copies(self, run: RouterRun, endpoint: RoutedEndpoint) -> list[RouterRun]:
        """What shadows get of a run that was not routed yet; `send_copy` each of them."""
        copies: list[RouterRun] = []
        for name, (lo, hi) in endpoint.traffic.copies(len(run.payloads), self._chance):
            copy = run.slice(lo, hi)
            copy.caller, copy.session, copy.shadow_of, copy.tenant = self._no_caller, None, name, None
            copies.append(copy)
        return copies

    def send_copy(self, copy: RouterRun, now: float) -> None:
        """Sends the calls for which a slot is free; drops the rest."""
        self._no_caller.runs[copy] = None
        backend = self._topology.backends.get(copy.shadow_of or "")
        if backend is not None:
            self._sender.spread_shadow(copy, backend, now)
        self._outcomes.fail_waiting(copy, failures.NO_FREE_SLOT)
        if copy.unanswered and copy.deadline != inf:
            self._deadlines.watch(copy.deadline, copy)

    def put_back(self, runs: Sequence[RouterRun], backend: RoutedBackend[RoutedReplica], now: float) -> None:
        """Queues runs that came back, by their age."""
        is_there = self._topology.backends.get(backend.name) is backend
        unkeyed: list[RouterRun] = []
        keyed: dict[Partition, list[RouterRun]] = {}
        constrained: list[RouterRun] = []
        for run in sorted(runs, key=lambda run: run.age):
            endpoint = self._topology.endpoint(run.endpoint)
            if run.session is not None and run.session.is_suspended:
                self.hold(run, now, admitted=True)
            elif run.slot is not None and constraint_of(run) is not None:
                constrained.append(run)
            elif endpoint is not None and run.partition is not None:
                partition = endpoint.partition(run.partition.number, self._topology.replicas)
                if partition.owner is None and endpoint.is_unavailable:
                    self._fail_unavailable(run, endpoint)
                    continue
                self._admit(run, endpoint.account_of(partition), now, admitted=True)
                keyed.setdefault(partition, []).append(run)
            elif endpoint is not None and is_there and (backend.is_serving or backend.name in endpoint.traffic.weights):
                self._admit(run, backend.account, now, admitted=True)
                unkeyed.append(run)
            else:
                run.partition = None
                self.route(run, now, admitted=True)
        for partition, back in keyed.items():
            partition.queue.put_back(*back)
        if unkeyed:
            backend.queue.put_back(*unkeyed)
        for run in constrained:
            self.route(run, now, admitted=True)
        for each in self._topology.backends.values() if constrained else ():
            self._sender.pump_queue(each, now)

    def watch(self, run: RouterRun) -> None:
        """Sees to it that the run is looked at when its time in the queue, or its time in all, is up."""
        when = min(run.deadline, run.asked_until) if not run.is_overdue else run.asked_until
        if run.account is not None and run.waiting:
            when = min(run.account.too_late(run), run.arrived + run.account.max_queue_time_s, run.asked_until)
        if when != inf:
            self._deadlines.watch(when, run)

    def _slices(self, run: RouterRun, endpoint: RoutedEndpoint) -> Sequence[tuple[str, tuple[int, int]]]:
        waiting = run.waiting
        if run.options.shard_key:
            name = endpoint.traffic.of_shard(run.options.shard_key)
            return [(name, (0, waiting))] if name is not None else []
        return endpoint.traffic.split(waiting, self._chance)

    def _cut(self, run: RouterRun, slices: Iterable[tuple[str, tuple[int, int]]]) -> list[tuple[RouterRun, str]]:
        """The waiting part of the run, as a run for each slice, in the order of the calls."""
        begin = run.cursor
        parts = [(run.slice(begin + lo, begin + hi), name) for name, (lo, hi) in slices]
        for part, _ in parts:
            self._outcomes.replaced(run, len(part.payloads), part)
        run.cursor = len(run.payloads)
        parts.sort(key=lambda part: part[0].ids[0])
        return parts

    def _to_partition(self, run: RouterRun, endpoint: RoutedEndpoint, now: float, *, admitted: bool) -> None:
        partition = run.partition = endpoint.partition(run.options.partition, self._topology.replicas)
        owner = partition.owner
        waiting = len(run.payloads) - run.cursor
        is_first = not partition.queue.runs or not partition.queue
        if is_first and owner is not None and partition.sendable and (room := owner.keyed_room) > 0:
            count = min(waiting, room)
            self._sender.send(run, count, owner, partition.epoch, now)
            waiting -= count
        if owner is None and endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint)
        elif waiting and self._admit(run, endpoint.account_of(partition), now, admitted=admitted):
            partition.queue.append(run)
            self._sender.list(partition)
        elif run.deadline != inf and run.unanswered:
            self._deadlines.watch(run.deadline, run)

    def _to_backend(self, run: RouterRun, name: str, endpoint: RoutedEndpoint, now: float, *, admitted: bool) -> None:
        backend = self._topology.backends.get(name)
        if backend is None:
            if self._admit(run, endpoint.account, now, admitted=admitted):
                endpoint.parked.append(run)
            return
        waiting = len(run.payloads) - run.cursor
        queue = backend.queue
        if not queue and not queue.is_braked:
            waiting -= self._sender.spread(run, backend, waiting, now)
        if waiting and self._admit(run, backend.account, now, admitted=admitted):
            queue.append(run)
            if queue.is_braked:
                self._sender.pump_queue(backend, now)
        elif run.deadline != inf and run.unanswered:
            self._deadlines.watch(run.deadline, run)

    def _reserve(self, run: RouterRun, endpoint: RoutedEndpoint, now: float, *, admitted: bool) -> None:
        """Finds the backend of a reservation: that of the replica that it names, if it names one."""
        backends = self._topology.backends
        drawn = self._slices(run, endpoint)
        constraint = constraint_of(run)
        if not drawn and (constraint is None or not endpoint.is_unavailable):
            self._without_share(run, endpoint, now, admitted=admitted)
            return
        name = drawn[0][0] if drawn else ""
        if constraint is None:
            if (backend := backends.get(name)) is not None:
                _limit(run, backend)
            self._to_backend(run, name, endpoint, now, admitted=admitted)
            return
        of_endpoint = [backends[each] for each in (name, *endpoint.policy.weights) if each in backends]
        fit = [each for each in of_endpoint if can_serve(each.replicas.values(), constraint)]
        fit.sort(key=lambda each: not can_serve([one for one in each.replicas.values() if one.taking], constraint))
        if constraint.replica_id and not fit:
            self._outcomes.fail_waiting(run, failures.no_such_replica(run, constraint.replica_id))
        elif endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint)
        elif not of_endpoint:
            self._to_backend(run, name, endpoint, now, admitted=admitted)
        else:
            self._to_constrained(run, (fit or of_endpoint)[0], now, admitted=admitted)

    def _to_constrained(
        self, run: RouterRun, backend: RoutedBackend[RoutedReplica], now: float, *, admitted: bool
    ) -> None:
        _limit(run, backend)
        # Older ones that wait can have no replica that has room; but those that come back, before it is their turn.
        best = best_for(run, backend.replicas.values()) if not admitted else None
        if best is not None:
            self._sender.send(run, 1, best, 0, now)
            best.backend.balancer.changed(best)
            self.watch(run)
        elif not admitted and backend.constrained.is_full:
            if run.tenant is not None:
                run.tenant.refuse(run.waiting, now)
            full = backend.account.full(now, self._chance())
            why = why_not_load(run, backend.account, self._topology)
            self._outcomes.fail_waiting(run, failures.room_full(backend.name, full, why))
        elif self._admit(run, backend.account, now, admitted=admitted):
            backend.constrained.add(run)

    def _without_share(self, run: RouterRun, endpoint: RoutedEndpoint, now: float, *, admitted: bool) -> None:
        """There is no backend for the run: it waits for a policy, or fails where that has one."""
        if endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint)
        elif self._admit(run, endpoint.account, now, admitted=admitted):
            endpoint.parked.append(run)

    def _fail_unavailable(self, run: RouterRun, endpoint: RoutedEndpoint) -> None:
        why = why_unavailable(endpoint, self._topology)
        if not run.reserves:
            for name in endpoint.policy.weights:
                if (backend := self._topology.backends.get(name)) is not None:
                    backend.counts.ended.of(run.endpoint).failed += run.waiting
        self._outcomes.fail_waiting(run, failures.unavailable(endpoint.name, why, self._chance()))

    def _admit(self, run: RouterRun, account: Account, now: float, *, admitted: bool) -> bool:
        """Charges the waiting calls and fails those that do not fit. Returns whether any waits."""
        if admitted:
            account.charge_all(run)
        else:
            fits = account.charge(run)
            if fits < run.waiting:
                if run.tenant is not None:
                    run.tenant.refuse(run.waiting - fits, now)
                why = why_not_load(run, account, self._topology)
                full = account.full(now, self._chance(), why, run=run, fits=fits)
                self._outcomes.fail_waiting(run, full, keep=fits)
            if not fits:
                return False
        if account.waits(now):
            self._first_waits(account)
        self.watch(run)
        return True

    def _first_waits(self, account: Account) -> None:
        """Where no replica takes calls, the controller may have to start one for this."""
        backend = self._topology.backends.get(account.name)
        if backend is None or backend.account is not account or not backend.candidates:
            self._out.append(ReportLoad())


def _limit(run: RouterRun, backend: RoutedBackend[RoutedReplica]) -> None:
    """A reservation without a timeout waits for as long as its backend lets calls wait, at replicas, too."""
    if run.deadline == inf:
        run.deadline = run.arrived + backend.account.max_queue_time_s


class Availability:
    """Moves waiting calls when a backend starts or stops being able to serve.

    Purpose: a backend whose last replica is lost, drains or leaves gets no calls while another one of the policy can
    serve; it gets its share again when one of its replicas takes calls. If none can serve, calls wait while a replica
    is starting, and fail immediately if none is.
    Invariants: after each event no call waits for a backend that cannot serve while another one of its policy can,
    except for reservations that only certain replicas satisfy; and none waits if no replica is starting.
    """

    def __init__(self, topology: Topology, intake: RoutingIntake, sender: Sender) -> None:
        self._topology = topology
        self._intake = intake
        self._sender = sender
        self.flipped = topology.flipped
        """Backends that have changed in this; looked at after each event."""

    def joined(self, replicas: Sequence[RoutedReplica], now: float) -> None:
        """These replicas take calls from now on, as far as they are linked: what is older and waits elsewhere, too."""
        self.follow(now)
        self._sender.joined(replicas, now)

    def follow(self, now: float) -> None:
        """What waits finds its place anew, oldest first, if a backend has flipped."""
        if not self.flipped:
            return
        moved = self._topology.assess()
        for run in moved:
            cancellation.uncharge(run)
            self._intake.route(run, now, admitted=True)
        if any(constraint_of(run) is not None for run in moved):
            # Those that wait for certain replicas are placed in turn.
            for backend in self._topology.backends.values():
                self._sender.pump_queue(backend, now)
