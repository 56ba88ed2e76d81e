"""The single writer of the scheduler: feeds it events, carries out its commands, wakes it in time.

Purpose: the only door to the core. Everything here is synchronous and runs on one event loop, so nothing is locked and
no event waits for another.
Invariants: commands are carried out in order, before the next event; a timer is armed whenever something can expire.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import cast

from router_service.core.callers import Caller
from router_service.core.calls import Batch, CallOptions, Failures, Results
from router_service.core.commands import (
    AskReconcile,
    CancelRun,
    CloseLink,
    Command,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    DeliverValues,
    Flush,
    NameRoster,
    OpenLink,
    TakeValues,
)
from router_service.core.replicas.capacity import Capacity
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import Replica
from router_service.core.replicas.slicing import MethodTime
from router_service.core.routing.rosters import ReplicaKey, RosterVersion
from router_service.core.routing.table import RoutingTable
from router_service.core.runs import CallerBook, SliceHolder
from router_service.core.scheduler import Scheduler
from router_service.core.sessions.found_calls import Found
from router_service.core.slots.frames import OutgoingOp
from router_service.core.slots.slot import Dispatch, Release, Renew, Reserve, SlotAnswer
from router_service.shell.receivers import Link, SessionSink, Sink, SlotSink
from slotmesh.chunks import Payload
from slotmesh.errors import Failure
from slotmesh.runtime.clock import Clock

TABLE_WAIT_S = 3.0
"""How long whoever comes before the first routing table waits for it, at most."""


class Dispatcher:
    """Events in, effects out."""

    def __init__(self, scheduler: Scheduler, clock: Clock, open_link: Callable[[Replica, Dispatcher], Link]) -> None:
        """`open_link` starts to connect to a replica and reports through the dispatcher."""
        self.scheduler = scheduler
        self.clock = clock
        self._open_link = open_link
        self._links: dict[SliceHolder, Link] = {}
        self._sinks: dict[CallerBook, Sink] = {}
        self._ended: set[ReplicaKey] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._table_came = asyncio.Event()
        self.on_links_changed: Callable[[], None] = lambda: None
        """Called when a replica was linked or lost."""

    # -- callers -------------------------------------------------------------------------------------------------

    def attach(self, caller: Caller, sink: Sink) -> None:
        """Outcomes of the caller's calls go to `sink` from now on."""
        self._sinks[caller] = sink
        if caller.session is not None:
            self._do(self.scheduler.connected(caller, self.clock.now()))

    def detach(self, caller: Caller) -> None:
        """The caller is gone; outcomes go nowhere. Its calls are cancelled, unless its session may go on elsewhere."""
        self._sinks.pop(caller, None)
        if caller.session is not None:
            self._do(self.scheduler.disconnected(caller, self.clock.now()))
        elif caller.runs or caller.request_id:
            self._do(self.scheduler.cancel(caller, self.clock.now()))

    def submit(self, caller: Caller, endpoint: str, batches: Iterable[Batch]) -> None:
        """Calls that passed the edge's checks."""
        self._do(self.scheduler.submit(caller, endpoint, batches, self.clock.now()))

    def submit_again(
        self,
        caller: Caller,
        endpoint: str,
        batches: Iterable[Batch],
        age_s: float,
        first_roster: RosterVersion | None,
    ) -> None:
        """Calls that an earlier connection of the session has sent."""
        self._do(self.scheduler.submit_again(caller, endpoint, batches, age_s, first_roster, self.clock.now()))

    def resent_all(self, caller: Caller) -> None:
        """No more calls are sent again that earlier connections of the session have sent."""
        self._do(self.scheduler.resent_all(caller, self.clock.now()))

    def acknowledged(self, caller: Caller, version: RosterVersion) -> None:
        """The client of a session knows this roster now."""
        self._do(self.scheduler.acknowledged(caller, version, self.clock.now()))

    def brought(self, caller: Caller, call_id: int, size: int) -> None:
        """So many bytes of a payload that was announced have come."""
        self.scheduler.uploads.brought(caller, call_id, size, self.clock.now())
        self._arm()

    def uploaded(self, caller: Caller, call_id: int, payload: Payload) -> None:
        """A payload that was announced is complete."""
        self._do(self.scheduler.uploads.completed(caller, call_id, payload, self.clock.now()))

    def not_uploaded(self, caller: Caller, call_id: int, failure: Failure) -> None:
        """A payload that was announced will never be complete."""
        self._do(self.scheduler.uploads.failed(caller, call_id, failure, self.clock.now()))

    def fetch(self, caller: Caller, endpoint: str, answered: DeliverResults) -> None:
        """Asks for results once more whose payloads were dropped."""
        self._do(self.scheduler.fetch(caller, endpoint, answered, self.clock.now()))

    def forget(self, replica: SliceHolder, links: int, first: int, count: int) -> None:
        """The client has the outcomes of these runs of the replica, sent when so many links to it had been lost."""
        if replica.links == links and (link := self._links.get(replica)) is not None:
            link.forget(first, count)

    def take(self, replica: SliceHolder, links: int, run_id: int, count: int) -> None:
        """So many values of this run were taken; it was sent when so many links to the replica had been lost."""
        if replica.links == links and (link := self._links.get(replica)) is not None:
            link.take(run_id, count)

    def cancel(self, caller: Caller, ranges: Iterable[tuple[int, int]]) -> None:
        """The caller takes calls back: ids from first to last, both included."""
        self._do(self.scheduler.cancel_calls(caller, ranges, self.clock.now()))

    def brake(self, *, is_braked: bool) -> None:
        """Clients have too many results unread: no more calls are to be started than must be; or no longer."""
        self._do(self.scheduler.brake(is_braked=is_braked, now=self.clock.now()))

    # -- slots ---------------------------------------------------------------------------------------------------

    def reserve(self, caller: Caller, endpoint: str, options: CallOptions, wanted: Reserve, request_id: str) -> None:
        """A slot that passed the edge's checks; the caller's sink is a SlotSink."""
        self._do(self.scheduler.slots.reserve(caller, endpoint, options, wanted, self.clock.now(), request_id))

    def dispatch(self, caller: Caller, key: ReplicaKey, options: CallOptions, payload: Payload, into: Dispatch) -> None:
        """A call into a slot of this replica."""
        self._do(self.scheduler.slots.dispatch(caller, key, options, payload, into, self.clock.now()))

    def slot_op(self, caller: Caller, key: ReplicaKey, op: Renew | Release) -> None:
        """A slot of this replica is to be held longer, or to be given back; the caller's sink is a SlotSink."""
        self._do(self.scheduler.slots.operate(caller, key, op, self.clock.now()))

    def give_back(self, key: ReplicaKey, token: str) -> None:
        """A slot of this replica was granted, and nobody will hear of it."""
        self._do(self.scheduler.slots.give_back(key, token, self.clock.now()))

    # -- replicas ------------------------------------------------------------------------------------------------

    def link_up(self, replica: Replica, capacity: Capacity, stream_id: str = "") -> None:
        """The replica has introduced itself, on the stream of this id."""
        self._do(self.scheduler.link_up(replica, capacity, self.clock.now(), stream_id))
        self.on_links_changed()

    def link_down(self, replica: Replica, why: str) -> None:
        """The connection to the replica broke."""
        self._do(self.scheduler.link_down(replica, why, self.clock.now()))
        self.on_links_changed()

    def retry_link_in_s(self, replica: Replica) -> float:
        """The replica's link failed, or could not be made: seconds until the next attempt."""
        return self.scheduler.retry_link_in_s(replica, self.clock.now())

    def completed(
        self,
        replica: Replica,
        results: Iterable[Results],
        failures: Iterable[Failures],
        capacity: Capacity | None,
        done: list[int],
        values: Iterable[Results] | None = None,
    ) -> None:
        """A result frame arrived."""
        self._do(self.scheduler.completed(replica, results, failures, capacity, self.clock.now(), done, values))

    def reconciled(self, replica: Replica, session_id: str, epoch: int, found: Found) -> None:
        """The replica has said what it knows of a session's calls."""
        self._do(self.scheduler.reconciled(replica, session_id, epoch, found, self.clock.now()))

    def stopped(self, replica: Replica, ranges: Iterable[tuple[int, int]]) -> None:
        """Lanes have stopped at these calls, by run ids, both ends included."""
        self._do(self.scheduler.stopped(replica, ranges, self.clock.now()))

    def refused(self, replica: Replica, ids: list[int], failure: Failure, capacity: Capacity) -> None:
        """Runs came back untouched."""
        self._do(self.scheduler.refused(replica, ids, failure, capacity, self.clock.now()))

    def slots_answered(self, replica: Replica, answers: Iterable[SlotAnswer], capacity: Capacity | None = None) -> None:
        """Answers to operations on slots arrived, and perhaps the replica's load after them."""
        self._do(self.scheduler.slots.answered(replica, answers, capacity, self.clock.now()))

    def capacity_changed(self, replica: Replica, capacity: Capacity) -> None:
        """The replica's load changed without a result."""
        self._do(self.scheduler.capacity_changed(replica, capacity, self.clock.now()))

    def times_told(self, replica: Replica, times: Mapping[str, MethodTime]) -> None:
        """The replica has said how quickly it gets through calls, by method."""
        self.scheduler.times_told(replica, times)

    def draining(self, replica: Replica) -> None:
        """The replica takes no more runs."""
        self._do(self.scheduler.draining(replica, self.clock.now()))

    def cut_frame(self, replica: Replica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
        """What the next frame to the replica carries, without what has expired by now."""
        self._expire_due()
        return self.scheduler.cut_frame(replica, max_calls, max_bytes)

    def cut_ops(self, replica: Replica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of operations on slots carries, without what has expired by now."""
        self._expire_due()
        return self.scheduler.slots.cut_ops(replica, max_bytes)

    def _expire_due(self) -> None:
        due = self.scheduler.next_deadline()
        if due is not None and due <= self.clock.now():
            self._do(self.scheduler.expire(self.clock.now()))

    # -- configuration -------------------------------------------------------------------------------------------

    def apply(self, table: RoutingTable) -> bool:
        """A routing table arrived. Returns whether it is in force now."""
        self._do(self.scheduler.apply(table, self.clock.now()))
        if self.scheduler.topology.table is not table:
            return False
        self._table_came.set()
        return True

    async def await_table(self) -> None:
        """Returns once there is a routing table, or after `TABLE_WAIT_S`: one that has just started gets it soon."""
        if not self._table_came.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._table_came.wait(), TABLE_WAIT_S)

    def replica_ended(self, replica: Replica) -> None:
        """The replica has said that it starts nothing any more, and has ended its stream in order."""
        self._ended.add(replica.key)
        self.on_links_changed()

    def ended_replicas(self) -> list[ReplicaKey]:
        """The replicas of the table that have said so."""
        self._ended &= self.scheduler.topology.replicas.keys()
        return sorted(self._ended)

    def linked_replica_ids(self) -> list[str]:
        """Ids of the replicas of the table that there is a working link to."""
        return sorted(each.replica_id for each in self.scheduler.topology.replicas.values() if each.linked)

    async def finish(self) -> None:
        """Nothing more is wanted of replicas, which hear what clients have acknowledged. Returns when they have."""
        await asyncio.gather(*(link.finish() for link in self._links.values()))

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
                case DeliverResults() | DeliverDone() | DeliverFailure() | DeliverValues():
                    sink = self._sinks.get(command.caller)
                    if sink is not None:
                        sink.deliver(command)
                case Flush(replica):
                    self._links[replica].flush()
                case CancelRun(sent):
                    self._links[sent.replica].cancel(command)
                case AskReconcile(replica, session):
                    self._links[replica].reconcile(session)
                case TakeValues(replica, run_id, count):
                    self._links[replica].take(run_id, count)
                case NameRoster(caller, version):
                    if (session_sink := self._sinks.get(caller)) is not None:
                        cast("SessionSink", session_sink).name_roster(version)
                case OpenLink(replica):
                    self._links[replica] = self._open_link(replica, self)
                case DeliverSlot():
                    if (slot_sink := self._sinks.get(command.caller)) is not None:
                        cast("SlotSink", slot_sink).deliver_slot(command)
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
        delay_s = max(0.0, due - self.clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._do(self.scheduler.expire(self.clock.now()))
