"""Moves calls from queues into the outboxes of replicas as soon as a replica can take them.

Invariants: nothing waits while a replica of its backend could take it, unless its queue is braked; a replica never has
more unkeyed calls than its reported capacity, nor more keyed ones than its window. A completion sends the next calls
immediately: nothing polls.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core import balancers
from router_service.core.commands import Flush, RouterCommand
from router_service.core.events import BrakeChanged
from router_service.core.limits.capacity import slice_calls
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun, Sent

KEYED_TURN_CALLS = 256
"""Calls of one partition before its owner serves the next one: what a lane runs in one turn."""


class Sender:
    """Fills outboxes; writes into `out`, the scheduler's list of commands."""

    def __init__(self, out: list[RouterCommand], topology: Topology) -> None:
        self._out = out
        self._topology = topology

    def spread(self, run: RouterRun, backend: RoutedBackend[RoutedReplica], most: int, now: float) -> int:
        """Sends up to `most` waiting calls, in slices to the replicas that have room; returns how many."""
        balancer, method = backend.balancer, run.options.method
        left = most
        while left:
            replica = balancer.pick() if run.slot is not None else backend.pick(method)
            if replica is None:
                break
            share = 1 if most == 1 else slice_calls(most, backend.candidates, replica.times.get(method))
            count = min(share, replica.free, left)
            self.send(run, count, replica, 0, now)
            balancer.changed(replica)
            left -= count
        return most - left

    def spread_shadow(self, run: RouterRun, backend: RoutedBackend[RoutedReplica], now: float) -> None:
        """Sends the calls for which a slot is free, and none that would wait or make others wait."""
        if backend.queue:
            return
        method, most = run.options.method, run.waiting
        while run.waiting:
            replica = backend.pick(method)
            if replica is None or replica.free_slots <= 0:
                return
            share = slice_calls(most, backend.candidates, replica.times.get(method))
            self.send(run, min(share, replica.free_slots, run.waiting), replica, 0, now)
            backend.balancer.changed(replica)

    def pump(self, replica: RoutedReplica, now: float) -> None:
        """Starts what waits and can start now that something about the replica has changed."""
        if replica.ready:
            self._pump_partitions(replica, now)
        self.pump_queue(replica.backend, now)
        if not replica.listed:
            self._topology.retire(replica)

    def pump_queue(self, backend: RoutedBackend[RoutedReplica], now: float) -> None:
        """Starts the backend's unkeyed runs, flow by flow, while there is room."""
        if backend.constrained:
            self._pump_in_turn(backend, now)
            return
        queue = backend.queue
        while (head := queue.head()) is not None:
            most = queue.turn(head)
            sent = self.spread(head, backend, most, now)
            if sent:
                queue.served(sent)
            if sent < most:
                return

    def brake(self, event: BrakeChanged, now: float) -> None:
        """From now on only few unkeyed calls of each caller are sent; or all are again."""
        self._topology.brake(is_on=event.is_braked)
        for backend in self._topology.backends.values() if not event.is_braked else ():
            self.pump_queue(backend, now)

    def _pump_in_turn(self, backend: RoutedBackend[RoutedReplica], now: float) -> None:
        """The same, while reservations wait that not every replica will do for: those and the queue take turns."""
        constrained = backend.constrained
        while True:
            first, second = (self._serve_constrained, self._serve_queue)
            if not constrained.is_next:
                first, second = second, first
            if first(backend, now):
                constrained.is_next = not constrained.is_next
            elif not second(backend, now):
                # A flow that could not use its turn keeps it.
                return

    def _serve_constrained(self, backend: RoutedBackend[RoutedReplica], now: float) -> bool:
        """Places the oldest reservation that a replica with room will do for; returns whether there was one."""
        found = backend.constrained.match([each for each in backend.replicas.values() if each.free > 0])
        if found is None:
            return False
        run, replica = found
        self.send(run, 1, replica, 0, now)
        backend.balancer.changed(replica)
        return True

    def _serve_queue(self, backend: RoutedBackend[RoutedReplica], now: float) -> bool:
        """Gives the first flow its turn; returns whether anything was sent."""
        queue = backend.queue
        head = queue.head()
        sent = self.spread(head, backend, queue.turn(head), now) if head is not None else 0
        if sent:
            queue.served(sent)
        return sent > 0

    def send(self, run: RouterRun, count: int, replica: RoutedReplica, owner_epoch: int, now: float) -> None:
        """Puts the next `count` waiting calls of the run into the replica's outbox; there is room for them."""
        account = run.account
        if account is not None:
            account.drained(count, now)
            account.release(run, count)
        backend = replica.backend
        if run.slot is not None:
            self._flush_ops(replica)
            replica.reserve(run, now)
        else:
            if not replica.outbox:
                self._out.append(Flush(replica))
            replica.send(run, count, owner_epoch, now)
            if run.partition is not None:
                run.partition.sent(owner_epoch)
        if backend.hooks is not None and run.partition is None:
            balancers.placed(backend.hooks, replica, count)
        backend.counts.queue_time.observe(now - run.arrived, count)

    def bind(self, run: RouterRun, replica: RoutedReplica, now: float) -> None:
        """Gives the replica what only it can do. It is ahead of what waits in the outbox, and needs no room."""
        if replica.linked:
            self._flush_ops(replica)
        replica.bind(run, now)

    def linked(self, replica: RoutedReplica) -> None:
        """The replica can be reached: what was bound to it meanwhile leaves."""
        if replica.ops:
            self._out.append(Flush(replica))

    def _flush_ops(self, replica: RoutedReplica) -> None:
        if not replica.ops:
            self._out.append(Flush(replica))

    def list(self, partition: Partition) -> None:
        """Puts the partition among those that its owner serves in turn, if it has something to send."""
        if not partition.listed and partition.owner is not None and partition.queue and partition.sendable:
            partition.listed = True
            partition.owner.ready.append(partition)

    def resume(self, sent: Sent, number: int, now: float) -> None:
        """A partition of the slice, which owes it nothing more, may go on: with another owner, too."""
        endpoint = self._topology.endpoints.get(sent.run.endpoint)
        partition = endpoint.partitions.get(number) if endpoint is not None else None
        if partition is not None:
            self.list(partition)
            if partition.listed and partition.owner is not None and partition.owner is not sent.replica:
                self.pump(partition.owner, now)

    def joined(self, replicas: Sequence[RoutedReplica], now: float) -> None:
        """These replicas take calls from now on, as far as they are linked."""
        if not replicas:
            return
        for partition in self._topology.partitions():
            self.list(partition)
        for replica in replicas:
            self.pump(replica, now)

    def _pump_partitions(self, replica: RoutedReplica, now: float) -> None:
        while replica.ready and (room := replica.keyed_room) > 0:
            partition = replica.ready.popleft()
            run = partition.queue.head() if partition.owner is replica and partition.sendable else None
            if run is None:
                if partition.owner is replica:
                    partition.listed = False
                continue
            self.send(run, min(run.waiting, room, KEYED_TURN_CALLS), replica, partition.epoch, now)
            if partition.queue:
                replica.ready.append(partition)
            else:
                partition.listed = False
