"""The router's decisions: which replica runs which calls, and what every caller hears.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
Events are here, in `slots` and `uploads`; `intake` is the way in, `sender` out, `answers` back; `conclusions` follow.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than it said it can take, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it, unless the brake is on.
  5. A slot that is granted to somebody who waits no more is released at once.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from router_service.core import cancellation, failures
from router_service.core.calls import Batch, Failures, Results
from router_service.core.conclusions import Conclusions
from router_service.core.counters import Counters
from router_service.core.outcomes import Outcomes
from router_service.core.queueing.deadlines import DeadlineHeap
from router_service.core.queueing.expiry import Expiry
from router_service.core.replicas import frames
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.capacity import Capacity
from router_service.core.replicas.ejection import LONGEST_S
from router_service.core.replicas.replica import Replica
from router_service.core.replicas.sender import Sender
from router_service.core.routing.intake import Intake
from router_service.core.routing.topology import Topology
from router_service.core.runs import CallerBook, Run
from router_service.core.sessions.acknowledgements import Acknowledgements
from router_service.core.sessions.resumption import Resumptions
from router_service.core.sessions.suspension import SuspendedRuns
from router_service.core.slots.events import SlotEvents
from router_service.core.slots.operations import SlotOperations
from router_service.core.submissions import Submissions
from router_service.core.uploads.events import UploadEvents
from router_service.core.uploads.uploads import MAX_UPLOAD_BYTES, Uploads
from slotmesh.chunks import Announced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router_service.core.callers import Caller
    from router_service.core.commands import Command, DeliverResults
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.slicing import MethodTime
    from router_service.core.routing.rosters import RosterVersion
    from router_service.core.routing.sampling import Chance
    from router_service.core.routing.table import RoutingTable
    from router_service.core.sessions.found_calls import Found
    from slotmesh.errors import Failure


class Scheduler:
    """State of one router's data plane; single writer, never awaited inside."""

    def __init__(self, chance: Chance, *, max_upload_bytes: int = MAX_UPLOAD_BYTES) -> None:
        """`chance` draws uniformly from [0, 1). `max_upload_bytes`: under way in chunks, and waiting behind these."""
        self._chance = chance
        self._numbers = count(1)
        """Ages of runs."""
        self._out: list[Command] = []
        self._deadlines = DeadlineHeap()
        self.counters = Counters()
        self.topology = Topology(self._out, self.counters, chance)
        self._outcomes = Outcomes(self._out, self.counters)
        self._sender = Sender(self._out, self.topology)
        self._suspended = SuspendedRuns()
        self._intake = Intake(self.topology, self._outcomes, self._deadlines, self._sender, self._suspended, chance)
        self._resumptions = Resumptions(self._out, self.topology, self._outcomes, self._intake)
        self._acknowledgements = Acknowledgements(
            self._out, self.topology, self._outcomes, self._intake, self._suspended
        )
        self._uploads = Uploads(max_upload_bytes)
        self._answers = Answers(self._out, self.counters, self._outcomes, self._sender, self._intake)
        self._slot_operations = SlotOperations(
            self._out,
            self.topology,
            self._outcomes,
            self._deadlines,
            self._sender,
            self._intake,
            self._answers,
        )
        self._submissions = Submissions(
            self._numbers, self.topology, self._outcomes, self._intake, self._resumptions, self._uploads
        )
        self._expiry = Expiry(self._deadlines, self._outcomes, self._intake, self._slot_operations, self._suspended)
        conclusions = Conclusions(
            self._out,
            topology=self.topology,
            outcomes=self._outcomes,
            sender=self._sender,
            intake=self._intake,
            answers=self._answers,
            operations=self._slot_operations,
            uploads=self._uploads,
            submissions=self._submissions,
        )
        self._begin = self._submissions.begin
        self._commands, self._withdrawn = conclusions.commands, conclusions.withdrawn
        self.uploads = UploadEvents(self._outcomes, self._uploads, self._submissions, conclusions)
        self.slots = SlotEvents(
            self._numbers,
            counters=self.counters,
            outcomes=self._outcomes,
            sender=self._sender,
            intake=self._intake,
            operations=self._slot_operations,
            expiry=self._expiry,
            conclusions=conclusions,
        )

    # -- callers ---------------------------------------------------------------------------------------------------

    def connected(self, caller: Caller, now: float) -> list[Command]:
        """A session has its connection here now: what an earlier one has sent is looked for at the replicas."""
        if caller.session is not None:
            self._acknowledgements.opened(caller)
            self._resumptions.opened(caller.session, now)
        return self._commands(now)

    def acknowledged(self, caller: Caller, version: RosterVersion, now: float) -> list[Command]:
        """The client of a session knows this roster now."""
        if caller.session is not None:
            self._sender.joined(self._acknowledgements.acknowledged(caller.session, version, now), now)
        return self._commands(now)

    def submit(self, caller: Caller, endpoint: str, batches: Iterable[Batch], now: float) -> list[Command]:
        """Calls that passed the edge's checks."""
        label, numbers = (self.counters.label(endpoint),), self._numbers
        uploads = self._uploads.lines
        for options, ids, payloads in batches:
            run = Run(next(numbers), caller, endpoint, options, ids, payloads, now)
            self.counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
            elif not (uploads or type(payloads[0]) is Announced) or not self._submissions.holds_back(run, now):
                self._begin(run, now)
        return self._commands(now)

    def submit_again(
        self,
        caller: Caller,
        endpoint: str,
        batches: Iterable[Batch],
        age_s: float,
        first_roster: RosterVersion | None,
        now: float,
    ) -> list[Command]:
        """Calls that were sent before, `age_s` ago; `first_roster` is the newest that their client knew by then."""
        label, numbers = (self.counters.label(endpoint),), self._numbers
        for options, ids, payloads in batches:
            run = Run(next(numbers), caller, endpoint, options, ids, payloads, now - age_s)
            run.may_have_run = True
            run.first_roster = first_roster
            self.counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if options.streaming:
                self._outcomes.fail_waiting(run, failures.NOT_RESUMED)
                continue
            self._resumptions.resent(run)
            if not self._submissions.holds_back(run, now):
                self._begin(run, now)
        return self._commands(now)

    def resent_all(self, caller: Caller, now: float) -> list[Command]:
        """Of the calls that earlier connections of the caller's session have sent, no more are sent again."""
        if caller.session is not None:
            self._resumptions.resent_all(caller.session, now)
        return self._commands(now)

    def fetch(self, caller: Caller, endpoint: str, answered: DeliverResults, now: float) -> list[Command]:
        """The payloads of these results were dropped here: asks the replica, which keeps them, once more."""
        self._submissions.fetch(caller, endpoint, answered, now)
        return self._commands(now)

    def disconnected(self, caller: CallerBook, now: float) -> list[Command]:
        """The connection of a session is gone: what replicas have of it goes on there, the rest will be sent again."""
        self._uploads.left(caller)
        if caller.session is not None:
            self._resumptions.left(caller.session)
        self._withdrawn(cancellation.leave(caller, self._outcomes), now)
        if caller.session is not None:
            self._sender.joined(self._acknowledgements.left(caller.session), now)
        return self._commands(now)

    def cancel(self, caller: Caller, now: float) -> list[Command]:
        """The caller is gone: what it has not heard of is CANCELLED."""
        self._uploads.left(caller)
        self._withdrawn(cancellation.cancel_caller(caller, self._outcomes), now)
        if caller.request_id and (alone := self._slot_operations.left(caller)) is not None:
            self._withdrawn(cancellation.cancel_caller(alone, self._outcomes), now)
        return self._commands(now)

    def cancel_calls(self, caller: Caller, ranges: Iterable[tuple[int, int]], now: float) -> list[Command]:
        """The caller takes calls back: ids from first to last, both included. Those that have ended stay so."""
        self._withdrawn(cancellation.cancel_calls(caller, ranges, self._outcomes), now)
        return self._commands(now)

    def brake(self, *, is_braked: bool, now: float) -> list[Command]:
        """Clients have too many results unread, or no longer."""
        self._sender.brake(is_braked=is_braked, now=now)
        return self._commands(now)

    # -- replicas --------------------------------------------------------------------------------------------------

    def link_up(self, replica: Replica, capacity: Capacity, now: float, stream_id: str = "") -> list[Command]:
        """The replica is connected and has said what it can take. The stream's id is what no other stream has."""
        if replica.listed:
            replica.linked = True
            replica.stream_id = stream_id
            replica.capacity = capacity
            replica.draining = replica.draining or capacity.draining
            replica.backend.changed(replica)
            replica.backend.ejections.came_back(replica.key, now)
            for partition in self.topology.partitions():
                if partition.owner is replica:
                    self._sender.list(partition)
            self._resumptions.link_up(replica)
            self._sender.linked(replica)
            self._sender.pump(replica, now)
        return self._commands(now)

    def link_down(self, replica: Replica, why: str, now: float) -> list[Command]:
        """The connection broke: what a frame has carried and is not answered may have been executed."""
        self._answers.lost(replica, why, now)
        self._resumptions.link_down(replica, now)
        self._sender.pump(replica, now)
        return self._commands(now)

    def reconciled(self, replica: Replica, session_id: str, epoch: int, found: Found, now: float) -> list[Command]:
        """The replica says what it knows of the calls that AskReconcile named."""
        self._resumptions.reconciled(replica, session_id, epoch, found, now)
        return self._commands(now)

    def retry_link_in_s(self, replica: Replica, now: float) -> float:
        """The replica's link failed, or could not be made: seconds until the next attempt."""
        backend = replica.backend
        if not replica.listed:
            return LONGEST_S
        return backend.ejections.failed(replica.key, len(backend.replicas), now, self._chance())

    def capacity_changed(self, replica: Replica, capacity: Capacity, now: float) -> list[Command]:
        """The replica's load changed without a result."""
        self._answers.learn(replica, capacity)
        self._sender.pump(replica, now)
        return self._commands(now)

    def times_told(self, replica: Replica, times: Mapping[str, MethodTime]) -> None:
        """The replica says how quickly it gets through calls, by method. It concerns what is sent from now on."""
        replica.times = times

    def draining(self, replica: Replica, now: float) -> list[Command]:
        """The replica takes no more runs; what it has is answered or handed back."""
        replica.draining = True
        replica.backend.changed(replica)
        self._sender.pump(replica, now)
        return self._commands(now)

    def cut_frame(self, replica: Replica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
        """What the next frame to the replica carries; empty when there is nothing. Call `expire` before."""
        return frames.cut_frame(replica, max_calls, max_bytes) if replica.outbox else []

    def completed(
        self,
        replica: Replica,
        results: Iterable[Results],
        failed: Iterable[Failures],
        capacity: Capacity | None,
        now: float,
        done: list[int] | None = None,
        values: Iterable[Results] | None = None,
    ) -> list[Command]:
        """A result frame: calls that ended, and the replica's load after them.

        `done`: calls that ended without a result of their own. `values`: of calls that go on, or end in this frame.
        """
        self._answers.completed(replica, results, failed, capacity, now, done, values)
        self._sender.pump(replica, now)
        return self._commands(now)

    def refused(
        self, replica: Replica, ids: list[int], failure: Failure, capacity: Capacity, now: float
    ) -> list[Command]:
        """The replica did not take these calls; nothing of them was executed. They go back by age.

        Those whose time in the queue is up end here: a replica that refuses again and again would keep them for ever.
        """
        self._answers.refused(replica, ids, failure, capacity, now)
        self._withdrawn(self._expiry.end_overdue(now), now)
        self._sender.pump(replica, now)
        return self._commands(now)

    def stopped(self, replica: Replica, ranges: Iterable[tuple[int, int]], now: float) -> list[Command]:
        """Nothing starts behind these calls, by run ids, of lanes that stop: they have failed for their callers."""
        cancellation.stop_asking(replica, ranges, self._outcomes)
        return self._commands(now)

    # -- configuration and time ------------------------------------------------------------------------------------

    def apply(self, table: RoutingTable, now: float) -> list[Command]:
        """A table from the controller; an older one changes nothing."""
        if table.supersedes(self.topology.table):
            homeless = self.topology.apply(table)
            self._acknowledgements.table_changed(now)
            for run in homeless:
                cancellation.uncharge(run)
                self._intake.route(run, now, admitted=True)
            for partition in self.topology.partitions():
                self._sender.list(partition)
            for replica in list(self.topology.replicas.values()):
                if replica.ready:
                    self._sender.pump(replica, now)
            for backend in self.topology.backends.values():
                self._sender.pump_queue(backend, now)
            self._resumptions.table_changed(now)
            self._slot_operations.table_changed(now)
        return self._commands(now)

    @property
    def shadows_under_way(self) -> int:
        """Sampled copies at replicas."""
        return self._intake.copies

    def next_deadline(self) -> float | None:
        """When the shell must call `expire`; None when nothing can expire."""
        due, asked = self._deadlines.next_deadline(), self._resumptions.next_deadline()
        over, join = self._slot_operations.next_deadline(), self._acknowledgements.next_deadline()
        stalled = self._uploads.next_deadline()
        if asked is None and over is None and join is None and stalled is None:
            return due
        return min(each for each in (due, asked, over, join, stalled) if each is not None)

    def expire(self, now: float) -> list[Command]:
        """Fails every call whose deadline or queue time has passed."""
        self._withdrawn(self._expiry.end_overdue(now), now)
        for alone in self._slot_operations.expire(now):
            self._withdrawn(cancellation.cancel_caller(alone, self._outcomes), now)
        self._resumptions.expire(now)
        for run, failure in self._uploads.pop_stalled(now):
            self._outcomes.fail_waiting(run, failure)
        self._sender.joined(self._acknowledgements.expire(now), now)
        return self._commands(now)
