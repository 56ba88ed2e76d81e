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
from router_service.core.commands import ReportLoad, Step
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.limits.admission import Account
from router_service.core.look_ups import LINK_WAIT_S, NOT_OWNED
from router_service.core.queueing.run_queues import SuspendedRuns, best_for, can_serve, constraint_of
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition, RoutedEndpoint, named_backend_problem
from router_service.core.routing.topology import Topology
from router_service.core.routing.waiting_causes import why_not_load, why_unavailable
from router_service.core.run_states import QUEUED, Earlier, RunEvent, RunState
from router_service.core.runs import RouterRun
from router_service.core.sampling import Chance
from slotmesh.calls.deadline_heap import DeadlineHeap

HOLD_S: Final = 30.0
"""How long calls of a session wait for their client to acknowledge the roster."""


class RoutingIntake:
    """Finds each run its place."""

    def __init__(self, topology: Topology, outcomes: CallerOutcomes, sender: Sender, chance: Chance) -> None:
        """`chance` draws uniformly from [0, 1)."""
        self.topology = topology
        self.outcomes = outcomes
        self.sender = sender
        self.suspended = SuspendedRuns()
        self.deadlines: DeadlineHeap[RouterRun] = DeadlineHeap(sweep_from=1024)
        self._chance = chance

    def route(self, run: RouterRun, step: Step, *, admitted: bool = False) -> None:
        """Sends what can be sent and queues the rest. Runs `admitted` before are not refused for room."""
        endpoint = self.topology.endpoint(run.endpoint)
        if endpoint is None:
            failure = failures.no_endpoint(run.endpoint, self.topology.table.endpoints, run.caller.knows)
            self.outcomes.fail_waiting(run, failure if self.topology.table.revision else failures.NO_TABLE, step)
        elif run.session is not None and run.session.is_suspended:
            self.hold(run, step, admitted=admitted)
        elif run.slot is not None:
            self._reserve(run, endpoint, step, admitted=admitted)
        elif (
            run.options.backend and (wrong := named_backend_problem(run, endpoint, self.topology.backends)) is not None
        ):
            self.outcomes.fail_waiting(run, wrong, step)
        elif run.options.partition >= 0:
            self._to_partition(run, endpoint, step, admitted=admitted)
        elif run.options.backend:
            self._to_backend(run, run.options.backend, endpoint, step, admitted=admitted)
        elif endpoint.traffic.only is not None:
            self._to_backend(run, endpoint.traffic.only, endpoint, step, admitted=admitted)
        else:
            slices = self._slices(run, endpoint)
            if len(slices) == 1:
                self._to_backend(run, slices[0][0], endpoint, step, admitted=admitted)
            elif slices:
                for part, name in self._cut(run, slices, step):
                    self._to_backend(part, name, endpoint, step, admitted=admitted)
            else:
                self._without_share(run, endpoint, step, admitted=admitted)

    def hold(self, run: RouterRun, step: Step, *, admitted: bool) -> None:
        """Keeps the run until its client knows all replicas that it could go to (`Acknowledgements`)."""
        if run.session is None:
            raise ValueError("calls without a session need no acknowledgement")
        step.advance(run, RunEvent.HELD)
        self.suspended.hold(run.session, run, step.now, is_admitted=admitted)
        self.deadlines.watch(min(run.deadline, step.now + HOLD_S), run)

    def recover(self, run: RouterRun, replica: RoutedReplica, step: Step) -> None:
        """Asks the replica for the outcomes of calls that it has. Nothing of their keys is sent elsewhere meanwhile."""
        endpoint = self.topology.endpoint(run.endpoint)
        epoch = NOT_OWNED
        if endpoint is not None and run.options.partition >= 0:
            partition = run.partition = endpoint.partition(run.options.partition, self.topology.replicas)
            if partition.owner is replica:
                epoch = partition.epoch
        if run.earlier is not Earlier.FETCHED:
            run.earlier = Earlier.FOUND
        self.sender.send(run, run.waiting, replica, epoch, step)
        # The replica may have more calls now than its capacity: no balancer chose it, the calls are there already.
        replica.backend.load_changed(replica)
        self.watch(run)

    def put_back(self, runs: Sequence[RouterRun], backend: RoutedBackend[RoutedReplica], step: Step) -> None:
        """Queues runs that came back, by their age."""
        is_there = self.topology.backends.get(backend.name) is backend
        unkeyed: list[RouterRun] = []
        keyed: dict[Partition, list[RouterRun]] = {}
        looked_up: dict[Partition, list[RouterRun]] = {}
        constrained: list[RouterRun] = []
        for run in sorted(runs, key=lambda run: run.age):
            endpoint = self.topology.endpoint(run.endpoint)
            if run.session is not None and run.session.is_suspended:
                self.hold(run, step, admitted=True)
            elif run.slot is not None and constraint_of(run) is not None:
                constrained.append(run)
            elif endpoint is not None and run.partition is not None:
                partition = endpoint.partition(run.partition.number, self.topology.replicas)
                if run.options.request is not None and self._unqueried(run, partition, step) is not None:
                    looked_up.setdefault(partition, []).append(run)
                    continue
                if partition.owner is None and endpoint.is_unavailable:
                    self._fail_unavailable(run, endpoint, step)
                    continue
                self._admit(run, endpoint.account_of(partition), step, admitted=True)
                if partition.lanes and partition.is_behind_look_up(run):
                    partition.keep_place(run)
                    continue
                keyed.setdefault(partition, []).append(run)
            elif endpoint is not None and is_there and (backend.is_serving or backend.name in endpoint.traffic.weights):
                self._admit(run, backend.account, step, admitted=True)
                unkeyed.append(run)
            else:
                run.partition = None
                self.route(run, step, admitted=True)
        for partition, back in keyed.items():
            partition.queue.put_back(*back)
        for partition, back in looked_up.items():
            # Younger calls of the same keys must not go ahead.
            for run in sorted([*partition.drain(), *back], key=lambda run: run.age):
                step.unqueue(run)
                self.route(run, step, admitted=True)
        if unkeyed:
            backend.queue.put_back(*unkeyed)
        for run in constrained:
            self.route(run, step, admitted=True)
        for each in self.topology.backends.values() if constrained else ():
            self.sender.pump_queue(each, step)

    def watch(self, run: RouterRun) -> None:
        """Sees to it that the run is looked at when its time in the queue, or its time in all, is up."""
        when = min(run.deadline, run.asked_until) if run.state is not RunState.OVERDUE else run.asked_until
        if run.account is not None and run.state is QUEUED:
            when = min(run.useless_at, run.arrived + run.account.max_queue_time_s, run.asked_until)
        if when != inf:
            self.deadlines.watch(when, run)

    def _slices(self, run: RouterRun, endpoint: RoutedEndpoint) -> Sequence[tuple[str, tuple[int, int]]]:
        waiting = run.waiting
        if key := run.options.shard_key or run.options.affinity_key:
            name = endpoint.traffic.of_shard(key)
            return [(name, (0, waiting))] if name is not None else []
        return endpoint.traffic.split(waiting, self._chance)

    def _cut(
        self, run: RouterRun, slices: Iterable[tuple[str, tuple[int, int]]], step: Step
    ) -> list[tuple[RouterRun, str]]:
        """The waiting part of the run, as a run for each slice, in the order of the calls."""
        begin = run.cursor
        parts = [(run.slice(begin + lo, begin + hi), name) for name, (lo, hi) in slices]
        for part, _ in parts:
            self.outcomes.replaced(run, len(part.payloads), part, step)
        run.cursor = len(run.payloads)
        self.outcomes.none_waits(run, step)
        parts.sort(key=lambda part: part[0].ids[0])
        return parts

    def _to_partition(self, run: RouterRun, endpoint: RoutedEndpoint, step: Step, *, admitted: bool) -> None:
        partition = run.partition = endpoint.partition(run.options.partition, self.topology.replicas)
        if run.options.request is not None and self._look_up(run, partition, step):
            return
        owner = partition.owner
        if partition.lanes and partition.is_behind_look_up(run):
            if self._admit(run, endpoint.account_of(partition), step, admitted=admitted):
                partition.keep_place(run)
            return
        waiting = len(run.payloads) - run.cursor
        is_first = not partition.queue.runs or not partition.queue
        if is_first and owner is not None and partition.sendable and (room := owner.keyed_room) > 0:
            count = min(waiting, room)
            self.sender.send(run, count, owner, partition.epoch, step)
            waiting -= count
        if owner is None and endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint, step)
        elif waiting and self._admit(run, endpoint.account_of(partition), step, admitted=admitted):
            partition.queue.insert(run)
            self.sender.list(partition, step)
        elif run.deadline != inf and run.unanswered:
            self.deadlines.watch(run.deadline, run)

    def not_found(self, run: RouterRun, step: Step) -> None:
        """The call was looked up without an outcome: the next owner is queried, or the call goes to the last one."""
        step.advance(run, RunEvent.NOT_FOUND)
        run.cursor = 0
        if isinstance(run.partition, Partition):
            run.partition.give_up_place(run)
        self.route(run, step, admitted=True)

    def _look_up(self, run: RouterRun, partition: Partition, step: Step) -> bool:
        """Looks a call with a request id up at an earlier owner. Returns False if the owner may have it.

        The earlier owner has executed the call and delivers the outcome, or refuses the call and never executes it. One
        without a link may be about to end, or its link to return: the call waits in its outbox for `LINK_WAIT_S`.
        """
        found = self._unqueried(run, partition, step)
        if found is None:
            return False
        replica, epoch = found
        if replica is None:
            self.outcomes.fail_waiting(run, failures.may_be_remembered(None), step)
            return True
        self.topology.links.need(replica, step)
        run.looked_up = {**run.looked_up, replica.key: epoch}
        self.sender.look_up(run, replica, step)
        if run.options.ordering_key:
            partition.keep_place(run)
        if not replica.linked:
            self.deadlines.watch(step.now + LINK_WAIT_S, run)
        self.watch(run)
        return True

    def _unqueried(self, run: RouterRun, partition: Partition, step: Step) -> tuple[RoutedReplica | None, int] | None:
        """Returns an earlier owner at which the call was not looked up, and its epoch. No replica: it is not known.

        So is an owner that drains: it may execute the call that this one repeats, and have ended when others own it.
        """
        owner = partition.owner
        if owner is not None and owner.draining and owner.linked and run.looked_up.get(owner.key) != NOT_OWNED:
            return owner, NOT_OWNED  # it is looked up again, at its epoch, when the partition has moved
        earlier = self.topology.earlier_owners(partition, step.now)
        if not earlier.is_complete:
            return None, 0
        for key, epoch in earlier.epochs.items():
            replica = self.topology.replicas.get(key)
            if replica is not None and replica is not partition.owner and run.looked_up.get(key) != epoch:
                return replica, epoch
        return None

    def _to_backend(self, run: RouterRun, name: str, endpoint: RoutedEndpoint, step: Step, *, admitted: bool) -> None:
        backend = self.topology.backends.get(name)
        if backend is None:
            if self._admit(run, endpoint.account, step, admitted=admitted):
                endpoint.parked.append(run)
            return
        waiting = len(run.payloads) - run.cursor
        queue = backend.queue
        if not queue and not queue.is_braked:
            waiting -= self.sender.spread(run, backend, waiting, step)
        if waiting and self._admit(run, backend.account, step, admitted=admitted):
            queue.append(run)
            if queue.is_braked or backend.delays.is_any:
                self.sender.pump_queue(backend, step)
        elif run.deadline != inf and run.unanswered:
            self.deadlines.watch(run.deadline, run)

    def _reserve(self, run: RouterRun, endpoint: RoutedEndpoint, step: Step, *, admitted: bool) -> None:
        """Finds the backend of a reservation: that of the replica that it names, if it names one."""
        backends = self.topology.backends
        drawn = self._slices(run, endpoint)
        constraint = constraint_of(run)
        if not drawn and (constraint is None or not endpoint.is_unavailable):
            self._without_share(run, endpoint, step, admitted=admitted)
            return
        name = drawn[0][0] if drawn else ""
        if constraint is None:
            if (backend := backends.get(name)) is not None:
                _limit(run, backend)
            self._to_backend(run, name, endpoint, step, admitted=admitted)
            return
        of_endpoint = [backends[each] for each in (name, *endpoint.policy.weights) if each in backends]
        fit = [each for each in of_endpoint if can_serve(each.replicas.values(), constraint)]
        fit.sort(key=lambda each: not can_serve([one for one in each.replicas.values() if one.taking], constraint))
        if constraint.replica_id and not fit:
            self.outcomes.fail_waiting(run, failures.no_such_replica(run, constraint.replica_id), step)
        elif endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint, step)
        elif not of_endpoint:
            self._to_backend(run, name, endpoint, step, admitted=admitted)
        else:
            self._to_constrained(run, (fit or of_endpoint)[0], step, admitted=admitted)

    def _to_constrained(
        self, run: RouterRun, backend: RoutedBackend[RoutedReplica], step: Step, *, admitted: bool
    ) -> None:
        _limit(run, backend)
        # Older ones that wait can have no replica that has room; but those that come back, before it is their turn.
        if (constraint := constraint_of(run)) is not None:
            self.topology.links.widen(backend, step, lambda it: constraint.admits(it.replica_id), least=1)
        best = best_for(run, backend.replicas.values()) if not admitted else None
        if best is not None:
            self.sender.send(run, 1, best, 0, step)
            best.backend.load_changed(best)
            self.watch(run)
        elif not admitted and backend.constrained.is_full:
            if run.tenant is not None:
                run.tenant.refuse(run.waiting, step.now)
            full = backend.account.full(step.now, self._chance())
            why = why_not_load(run, backend.account, self.topology)
            self.outcomes.fail_waiting(run, failures.room_full(backend.name, full, why), step)
        elif self._admit(run, backend.account, step, admitted=admitted):
            backend.constrained.add(run)

    def _without_share(self, run: RouterRun, endpoint: RoutedEndpoint, step: Step, *, admitted: bool) -> None:
        """There is no backend for the run: it waits for a policy, or fails where that has one."""
        if endpoint.is_unavailable:
            self._fail_unavailable(run, endpoint, step)
        elif self._admit(run, endpoint.account, step, admitted=admitted):
            endpoint.parked.append(run)

    def _fail_unavailable(self, run: RouterRun, endpoint: RoutedEndpoint, step: Step) -> None:
        why = why_unavailable(endpoint, self.topology)
        if not run.reserves:
            for name in endpoint.policy.weights:
                if (backend := self.topology.backends.get(name)) is not None:
                    backend.counts.ended.of(run.endpoint).failed += run.waiting
        self.outcomes.fail_waiting(run, failures.unavailable(endpoint.name, why, self._chance()), step)

    def _admit(self, run: RouterRun, account: Account, step: Step, *, admitted: bool) -> bool:
        """Charges the waiting calls and fails those that do not fit. Returns whether any waits."""
        if admitted:
            run.charge_all(account)
        else:
            fits = run.charge(account)
            if fits < run.waiting:
                if run.tenant is not None:
                    run.tenant.refuse(run.waiting - fits, step.now)
                why = why_not_load(run, account, self.topology)
                full = run.refused_by(account, fits, step.now, self._chance(), why)
                self.outcomes.fail_waiting(run, full, step, keep=fits)
            if not fits:
                return False
        step.advance(run, RunEvent.QUEUED)
        if account.waits(step.now):
            self._first_waits(account, step)
        self.watch(run)
        return True

    def _first_waits(self, account: Account, step: Step) -> None:
        """Where no replica takes calls, the controller may have to start one for this."""
        backend = self.topology.backends.get(account.name)
        if backend is None or backend.account is not account or not backend.candidates:
            step.commands.append(ReportLoad())


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

    def __init__(self, intake: RoutingIntake) -> None:
        self._intake = intake

    def joined(self, replicas: Sequence[RoutedReplica], step: Step) -> None:
        """These replicas take calls from now on, as far as they are linked: what is older and waits elsewhere, too."""
        self.follow(step)
        self._intake.sender.joined(replicas, step)

    def follow(self, step: Step) -> None:
        """What waits finds its place anew, oldest first, if a backend has flipped."""
        if not step.has_flipped:
            return
        step.has_flipped = False
        intake = self._intake
        moved = intake.topology.assess()
        for run in moved:
            step.unqueue(run)
            intake.route(run, step, admitted=True)
        if any(constraint_of(run) is not None for run in moved):
            # Those that wait for certain replicas are placed in turn.
            for backend in intake.topology.backends.values():
                intake.sender.pump_queue(backend, step)
