"""The single writer of the scheduler: feeds it events, carries out its commands, wakes it in time.

Purpose: the only door to the core. Everything here is synchronous and runs on one event loop, so nothing is locked and
no event waits for another.
Invariants: commands are carried out in order, before the next event; a timer is armed whenever something can expire.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from router_service.core.callers import Caller
from router_service.core.calls import Batch, Failures, Results, Sent
from router_service.core.commands import (
    CancelRun,
    CloseLink,
    Command,
    DeliverFailure,
    DeliverResults,
    OpenLink,
    SendRun,
)
from router_service.core.replicas import Capacity, Replica
from router_service.core.scheduler import Scheduler
from router_service.core.table import RoutingTable
from slotmesh.errors import Failure
from slotmesh.runtime.clock import Clock


class Sink(Protocol):
    """Where the outcomes of one caller go."""

    def deliver(self, outcome: DeliverResults | DeliverFailure) -> None:
        """Takes outcomes of some of the caller's calls; must not block."""


class Link(Protocol):
    """The way to one replica."""

    def send(self, sent: Sent) -> None:
        """Sends a slice, with the next frame."""

    def cancel(self, sent: Sent) -> None:
        """Tells the replica that nobody waits for the slice."""

    def close(self) -> None:
        """Disconnects for good."""


class Dispatcher:
    """Events in, effects out."""

    def __init__(self, scheduler: Scheduler, clock: Clock, open_link: Callable[[Replica, Dispatcher], Link]) -> None:
        """`open_link` starts to connect to a replica and reports through the dispatcher."""
        self.scheduler = scheduler
        self._clock = clock
        self._open_link = open_link
        self._links: dict[Replica, Link] = {}
        self._sinks: dict[Caller, Sink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.on_links_changed: Callable[[], None] = lambda: None
        """Called when a replica was linked or lost."""

    # -- callers -------------------------------------------------------------------------------------------------

    def attach(self, caller: Caller, sink: Sink) -> None:
        """Outcomes of the caller's calls go to `sink` from now on."""
        self._sinks[caller] = sink

    def detach(self, caller: Caller) -> None:
        """The caller is gone: its calls are cancelled, and their outcomes go nowhere."""
        self._sinks.pop(caller, None)
        if caller.runs:
            self._do(self.scheduler.cancel(caller))

    def submit(self, caller: Caller, endpoint: str, batches: Iterable[Batch]) -> None:
        """Calls that passed the edge's checks."""
        self._do(self.scheduler.submit(caller, endpoint, batches, self._clock.now()))

    # -- replicas ------------------------------------------------------------------------------------------------

    def link_up(self, replica: Replica, capacity: Capacity) -> None:
        """The replica has introduced itself."""
        self._do(self.scheduler.link_up(replica, capacity))
        self.on_links_changed()

    def link_down(self, replica: Replica, why: str, unsent: Iterable[Sent]) -> None:
        """The connection to the replica broke; `unsent` slices never left."""
        self._do(self.scheduler.link_down(replica, why, unsent))
        self.on_links_changed()

    def completed(
        self, replica: Replica, results: Iterable[Results], failures: Iterable[Failures], capacity: Capacity | None
    ) -> None:
        """A result frame arrived."""
        self._do(self.scheduler.completed(replica, results, failures, capacity))

    def refused(self, replica: Replica, ids: list[int], failure: Failure, capacity: Capacity) -> None:
        """Runs came back untouched."""
        self._do(self.scheduler.refused(replica, ids, failure, capacity))

    def capacity_changed(self, replica: Replica, capacity: Capacity) -> None:
        """The replica's load changed without a result."""
        self._do(self.scheduler.capacity_changed(replica, capacity))

    def draining(self, replica: Replica) -> None:
        """The replica takes no more runs."""
        self._do(self.scheduler.draining(replica))

    # -- configuration -------------------------------------------------------------------------------------------

    def apply(self, table: RoutingTable) -> None:
        """A routing table arrived."""
        self._do(self.scheduler.apply(table))

    def linked_replica_ids(self) -> list[str]:
        """Ids of the replicas of the table that there is a working link to."""
        return sorted(each.replica_id for each in self.scheduler.topology.replicas.values() if each.linked)

    def close(self) -> None:
        """Disconnects from all replicas and stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()

    # -- effects -------------------------------------------------------------------------------------------------

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case DeliverResults() | DeliverFailure():
                    sink = self._sinks.get(command.caller)
                    if sink is not None:
                        sink.deliver(command)
                case SendRun(sent):
                    self._links[sent.replica].send(sent)
                case CancelRun(sent):
                    self._links[sent.replica].cancel(sent)
                case OpenLink(replica):
                    self._links[replica] = self._open_link(replica, self)
                case CloseLink(replica):
                    if link := self._links.pop(replica, None):
                        link.close()
        self._arm()

    def _arm(self) -> None:
        """Wakes the scheduler at its next deadline; an earlier timer that is still needed stays."""
        due = self.scheduler.next_deadline()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        delay_s = max(0.0, due - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._do(self.scheduler.expire(self._clock.now()))
