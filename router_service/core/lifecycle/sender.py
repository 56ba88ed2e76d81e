"""Moves calls from queues into the outboxes of replicas as soon as a replica can take them.

Invariants: a call does not wait while a replica of its backend could take it, unless the queue is braked, or the call
is delayed for a replica that has its model (`preferences/delays`); a replica never has more unkeyed calls than its
reported capacity, nor more keyed ones than its window. A completion sends the next calls immediately: nothing polls.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from router_service.core import balancers
from router_service.core.commands import Flush, Step
from router_service.core.events import BrakeChanged
from router_service.core.limits.capacity import slice_calls
from router_service.core.look_ups import NOT_OWNED, LookUp
from router_service.core.preferences import Preferences
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition
from router_service.core.routing.topology import Topology
from router_service.core.run_states import ALL_SENT
from router_service.core.runs import RouterRun, Sent
from slotmesh.balancers import ANY_CALLS

KEYED_TURN_CALLS = 256
"""Calls of one partition before its owner serves the next one: what a lane runs in one turn."""
OVERTAKING = 4
"""Calls that may overtake one that waits at the head, for each replica that takes calls: of as many replicas that get
room in no order, one is its own with a probability of 98 %."""
MAX_OVERTAKING = 64


class Sender:
    """Fills outboxes."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ready: dict[RoutedReplica, deque[Partition]] = {}
        """Partitions with runs to send, in turn, by owner; replicas without any are left out."""
        self.awaited: dict[RoutedReplica, Callable[[RoutedReplica, Step], None]] = {}
        """Replicas for which calls wait that only they may execute: called when something about one has changed."""
        self.delaying: dict[RoutedBackend[RoutedReplica], None] = {}
        """Backends with calls that wait for a replica with their model. To be read."""

    def spread(self, run: RouterRun, backend: RoutedBackend[RoutedReplica], most: int, step: Step) -> int:
        """Sends up to `most` waiting calls, in slices to the replicas that have room; returns how many."""
        balancer, method = backend.balancer, run.options.method
        prefers = run.options.prefers or backend.prompts.arguments or backend.has_plug_in
        preferences = backend.preferences_of(run, step.now) if prefers else None
        left = most
        while left:
            preferred = preferences.pick(run, left) if preferences is not None else None
            if preferences is not None and preferences.unlinked is not None:
                self._topology.links.wish(preferences.unlinked, step)
            if preferred is not None:
                replica, share = preferred
                count = min(share, left)
            elif preferences is not None and backend.delays.is_delayed:
                break
            else:
                picked = balancer.pick(ANY_CALLS, ()) if run.slot is not None else backend.pick(method)
                if picked is None:
                    backend.delays.is_delayed = False
                    break
                replica = picked
                share = 1 if most == 1 else slice_calls(most, backend.candidates, replica.times.get(method))
                count = min(share, replica.free, left)
            self.send(run, count, replica, 0, step)
            backend.load_changed(replica)
            left -= count
        return most - left

    def pump(self, replica: RoutedReplica, step: Step) -> None:
        """Starts what waits and can start now that something about the replica has changed."""
        if replica in self._ready:
            self._pump_partitions(replica, step)
        if replica in self.awaited:
            self.awaited[replica](replica, step)
        self.pump_queue(replica.backend, step, replica)
        if not replica.listed:
            self._topology.retire(replica, step)

    def pump_queue(self, backend: RoutedBackend[RoutedReplica], step: Step, freed: RoutedReplica | None = None) -> None:
        """Starts the unkeyed runs, flow by flow, while there is room. `freed`: a replica that may have some now."""
        if backend.constrained:
            self._pump_in_turn(backend, step, freed)
            return
        queue, delays = backend.queue, backend.delays
        if were_any := delays.is_any:
            delays.begin()
        while (head := queue.head()) is not None:
            if freed is not None and backend.preferences is not None and self._overtake(head, freed, step):
                continue
            most = queue.turn(head)
            sent = self.spread(head, backend, most, step)
            if sent:
                queue.served(sent)
            # A part that was sent may have ended the turn: then another head is next.
            if sent < most and not (delays.is_delayed and (sent or self._pass_delayed(head, backend, step))):
                break
        if were_any or delays.is_any:
            self._settle(backend, step)

    def _pass_delayed(self, head: RouterRun, backend: RoutedBackend[RoutedReplica], step: Step) -> bool:
        """The head is delayed: sends calls of a run behind it that is not, or sets all of them aside.

        Returns whether others may be sent.
        """
        queue, delays = backend.queue, backend.delays
        for run in queue.behind(head):
            if sent := self.spread(run, backend, queue.turn(run), step):
                queue.overtook(head, run, sent)
                queue.served(sent)
                return True
            if not delays.is_delayed:
                return False
        queue.set_aside()
        return True

    def _settle(self, backend: RoutedBackend[RoutedReplica], step: Step) -> None:
        """No more calls can be sent: those that are delayed wait for a replica, or until `delays.due`."""
        delays = backend.delays
        backend.queue.restore()
        delays.settle(step.now)
        if delays.is_any:
            self.delaying[backend] = None
        else:
            self.delaying.pop(backend, None)

    def _overtake(self, head: RouterRun, freed: RoutedReplica, step: Step) -> bool:
        """Sends calls that the replica suits before the head, if another one suits that better; returns whether any.

        Delay scheduling (Zaharia et al., 2010), counted in calls: before the limit is reached, the replica of the head
        has probably had room. If the freed replica suits none of the first runs, it gets the head: no room is lost.
        A head that has waited for half of the time that it may wait is not overtaken: it would fail for its preference.
        """
        backend, preferences = freed.backend, freed.backend.preferences
        if freed.free <= 0 or not isinstance(preferences, Preferences):
            return False
        queue, prompts = backend.queue, backend.prompts
        left = min(MAX_OVERTAKING, OVERTAKING * backend.candidates) - queue.overtakers(head)
        ends_at = min(head.useless_at, head.arrived + backend.account.max_queue_time_s)
        if left <= 0 or 2 * (step.now - head.arrived) >= ends_at - head.arrived:
            return False
        prompts.begin(step.now)
        if preferences.suits(head, freed):
            return False
        run = next((run for run in queue.behind(head) if preferences.suits(run, freed)), None)
        if run is None:
            return False
        options = run.options
        has_own_prompts = options.method in prompts.arguments and not options.prefix_blocks
        count = 1 if has_own_prompts else min(queue.turn(run), freed.free, left)
        self.send(run, count, freed, 0, step)
        backend.load_changed(freed)
        queue.overtook(head, run, count)
        queue.served(count)
        return True

    def brake(self, event: BrakeChanged, step: Step) -> None:
        """From now on only few unkeyed calls of each caller are sent; or all are again."""
        self._topology.brake(is_on=event.is_braked)
        for backend in self._topology.backends.values() if not event.is_braked else ():
            self.pump_queue(backend, step)

    def _pump_in_turn(self, backend: RoutedBackend[RoutedReplica], step: Step, freed: RoutedReplica | None) -> None:
        """The same, while reservations wait that not every replica will do for: those and the queue take turns."""
        constrained = backend.constrained
        backend.delays.begin()
        while True:
            is_next = constrained.is_next
            if (is_next and self._serve_constrained(backend, step)) or (
                not is_next and self._serve_queue(backend, step, freed)
            ):
                constrained.is_next = not is_next
            # A flow that could not use its turn keeps it.
            elif not (self._serve_queue(backend, step, freed) if is_next else self._serve_constrained(backend, step)):
                self._settle(backend, step)
                return

    def _serve_constrained(self, backend: RoutedBackend[RoutedReplica], step: Step) -> bool:
        """Places the oldest reservation that a replica with room will do for; returns whether there was one."""
        found = backend.constrained.match([each for each in backend.replicas.values() if each.free > 0])
        if found is None:
            return False
        run, replica = found
        self.send(run, 1, replica, 0, step)
        backend.load_changed(replica)
        return True

    def _serve_queue(self, backend: RoutedBackend[RoutedReplica], step: Step, freed: RoutedReplica | None) -> bool:
        """Gives the first flow its turn; returns whether anything was sent."""
        queue = backend.queue
        if (head := queue.head()) is not None and freed is not None and self._overtake(head, freed, step):
            return True
        waiting = backend.account.calls
        while (head := queue.head()) is not None:
            if sent := self.spread(head, backend, queue.turn(head), step):
                queue.served(sent)
                return True
            if not backend.delays.is_delayed or not self._pass_delayed(head, backend, step):
                return False
            if backend.account.calls < waiting:
                return True
        return False

    def send(self, run: RouterRun, count: int, replica: RoutedReplica, owner_epoch: int, step: Step) -> None:
        """Puts the next `count` waiting calls of the run into the replica's outbox; there is room for them."""
        account = run.account
        if account is not None:
            account.drained(count, step.now)
            run.release(count)
        backend = replica.backend
        if run.slot is not None:
            self._flush_ops(replica, step)
            replica.reserve(run, step.now)
        else:
            if not replica.outbox:
                step.commands.append(Flush(replica))
            replica.send(run, count, owner_epoch, step.now)
            if run.partition is not None:
                run.partition.sent(owner_epoch)
        if run.cursor == len(run.payloads):
            step.advance(run, ALL_SENT)
        if run.partition is None:
            if backend.zone:
                backend.counts.sent_to(count, is_near=replica.is_near)
            if backend.hooks is not None:
                balancers.placed(backend.hooks, replica, count)
        preferences = backend.preferences
        if preferences is not None and (run.options.prefers or backend.prompts.arguments) and not run.recovers:
            preferences.sent(run, count, replica)
        backend.counts.queue_time.observe(step.now - run.arrived, count)

    def look_up(self, run: RouterRun, replica: RoutedReplica, step: Step) -> None:
        """Queries the replica, an earlier owner of the partition, for the outcome of the run's call."""
        if replica.linked and not replica.outbox:
            step.commands.append(Flush(replica))
        replica.send(run, 1, NOT_OWNED, step.now, LookUp)
        step.advance(run, ALL_SENT)

    def bind(self, run: RouterRun, replica: RoutedReplica, step: Step) -> None:
        """Gives the replica what only it can do. It is ahead of what waits in the outbox, and needs no room."""
        if replica.linked:
            self._flush_ops(replica, step)
        else:
            self._topology.links.need(replica, step)
        replica.bind(run, step.now)
        step.advance(run, ALL_SENT)

    def linked(self, replica: RoutedReplica, step: Step) -> None:
        """The replica can be reached: what waits for it alone leaves."""
        if replica.ops or replica.outbox:
            step.commands.append(Flush(replica))

    def _flush_ops(self, replica: RoutedReplica, step: Step) -> None:
        if not replica.ops:
            step.commands.append(Flush(replica))

    def list(self, partition: Partition, step: Step) -> None:
        """Puts the partition among those that its owner serves in turn, if it has something to send."""
        owner = partition.owner
        if partition.listed or owner is None or not partition.queue:
            return
        if partition.sendable:
            partition.listed = True
            self._ready.setdefault(owner, deque()).append(partition)
        elif not owner.has_link:
            self._topology.links.need(owner, step)

    def has_ready(self, replica: RoutedReplica) -> bool:
        """Whether partitions that it owns have something to send."""
        return replica in self._ready

    def settle(self, sent: Sent, offset: int, count: int, step: Step, *, is_last: bool) -> None:
        """These calls of the slice are at its replica no more, and what came back is queued: a new owner may be served.

        `is_last`: no call of the slice is there any more.
        """
        order = sent.run.partition
        if type(sent) is LookUp and isinstance(order, Partition):
            order.release(sent.run.options.ordering_key)
            self._resume(sent, order.number, step)
        elif order is not None:
            for number in order.answered(sent.owner_epoch, offset, count, is_last=is_last):
                self._resume(sent, number, step)

    def _resume(self, sent: Sent, number: int, step: Step) -> None:
        """A partition of the slice, which owes it nothing more, may go on: with another owner, too."""
        endpoint = self._topology.endpoints.get(sent.run.endpoint)
        partition = endpoint.partitions.get(number) if endpoint is not None else None
        if partition is not None:
            self.list(partition, step)
            if partition.listed and partition.owner is not None and partition.owner is not sent.replica:
                self.pump(partition.owner, step)

    def joined(self, replicas: Sequence[RoutedReplica], step: Step) -> None:
        """These replicas take calls from now on, as far as they are linked."""
        if not replicas:
            return
        for partition in self._topology.partitions():
            self.list(partition, step)
        for replica in replicas:
            self.pump(replica, step)

    def _pump_partitions(self, replica: RoutedReplica, step: Step) -> None:
        ready = self._ready[replica]
        while ready and (room := replica.keyed_room) > 0:
            partition = ready.popleft()
            run = partition.queue.head() if partition.owner is replica and partition.sendable else None
            if run is None:
                if partition.owner is replica:
                    partition.listed = False
                continue
            self.send(run, min(run.waiting, room, KEYED_TURN_CALLS), replica, partition.epoch, step)
            if partition.queue:
                ready.append(partition)
            else:
                partition.listed = False
        if not ready:
            del self._ready[replica]
