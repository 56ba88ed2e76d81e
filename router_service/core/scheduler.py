"""The router's decisions: which replica runs which calls, and what every caller hears.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
Here are the events; `intake` is the way in, `sender` the way out, `answers` the way back.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than it said it can take, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it.
  5. A slot that is granted to somebody who waits no more is released at once.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from router_service.core import cancellation, failures, frames
from router_service.core.acknowledgements import Acknowledgements
from router_service.core.answers import Answers
from router_service.core.calls import NO_OPTIONS, Batch, CallOptions, Failures, Results
from router_service.core.capacity import Capacity
from router_service.core.counters import Counters
from router_service.core.deadlines import DeadlineHeap
from router_service.core.ejection import LONGEST_S
from router_service.core.intake import HOLD_S, Intake
from router_service.core.outcomes import Outcomes
from router_service.core.replicas import Replica
from router_service.core.requests import Wish
from router_service.core.resumption import Resumptions
from router_service.core.runs import CallerBook, Run
from router_service.core.sender import Sender
from router_service.core.slot_frames import cut_ops
from router_service.core.slot_operations import ONE_CALL, SlotOperations
from router_service.core.suspension import SuspendedRuns
from router_service.core.topology import Topology
from router_service.core.uploads import MAX_UPLOAD_BYTES, Uploads
from slotmesh.chunks import Announced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router_service.core.callers import Caller
    from router_service.core.cancellation import Withdrawn
    from router_service.core.commands import Command, DeliverResults
    from router_service.core.draws import Chance
    from router_service.core.frames import OutgoingBatch
    from router_service.core.resumption import Found
    from router_service.core.rosters import ReplicaKey, RosterVersion
    from router_service.core.slicing import MethodTime
    from router_service.core.slot_frames import OutgoingOp
    from router_service.core.slots import Dispatch, Release, Renew, Reserve, SlotAnswer, SlotWork
    from router_service.core.table import RoutingTable
    from slotmesh.chunks import Payload
    from slotmesh.errors import Failure


class Scheduler:
    """State of one router's data plane; single writer, never awaited inside."""

    def __init__(self, chance: Chance, *, max_upload_bytes: int = MAX_UPLOAD_BYTES) -> None:
        """`chance` draws uniformly from [0, 1): the only randomness.

        `max_upload_bytes`: of payloads that are under way in chunks, and of what waits behind them.
        """
        self._chance = chance
        self._seq = 0
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
        self._slots = SlotOperations(
            self._out,
            self.topology,
            self._outcomes,
            self._deadlines,
            self._sender,
            self._intake,
            self._answers,
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
            self._joined(self._acknowledgements.acknowledged(caller.session, version, now), now)
        return self._commands(now)

    def submit(self, caller: Caller, endpoint: str, batches: Iterable[Batch], now: float) -> list[Command]:
        """Calls that passed the edge's checks."""
        label = (self.counters.label(endpoint),)
        uploads = self._uploads.lines
        for options, ids, payloads in batches:
            self._seq += 1
            run = Run(self._seq, caller, endpoint, options, ids, payloads, now)
            self.counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
            elif not (uploads or type(payloads[0]) is Announced) or not self._awaits(run, now):
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
        """Calls that an earlier connection of the session has sent, `age_s` ago. Their time has gone on since.

        `first_roster`: the newest that their client knew by then.
        """
        label = (self.counters.label(endpoint),)
        for options, ids, payloads in batches:
            self._seq += 1
            run = Run(self._seq, caller, endpoint, options, ids, payloads, now - age_s)
            run.may_have_run = True
            run.first_roster = first_roster
            self.counters.calls[label] += len(payloads)
            caller.runs[run] = None
            if options.streaming:
                self._outcomes.fail_waiting(run, failures.NOT_RESUMED)
            elif not self._awaits(run, now):
                self._begin(run, now)
        return self._commands(now)

    def brought(self, caller: Caller, call_id: int, size: int, now: float) -> None:
        """So many bytes of a payload that was announced have come."""
        self._uploads.brought(caller, call_id, size, now)

    def uploaded(self, caller: Caller, call_id: int, payload: Payload, now: float) -> list[Command]:
        """A payload that was announced is complete."""
        for run in self._uploads.complete(caller, call_id, payload):
            self._begin(run, now)
        return self._commands(now)

    def not_uploaded(self, caller: Caller, call_id: int, failure: Failure, now: float) -> list[Command]:
        """A payload that was announced will never be complete."""
        run = self._uploads.find(caller, call_id)
        if run is not None:
            self._outcomes.fail_waiting(run, failure)
        return self._commands(now)

    def awaits(self, caller: Caller, call_id: int) -> bool:
        """Whether the payload that the caller has announced for this call is still of use."""
        return self._uploads.awaits(caller, call_id)

    def _awaits(self, run: Run, now: float) -> bool:
        """Whether the run waits for payloads, or fails as there is no room for them."""
        if failure := self._uploads.refuse(run):
            self._outcomes.fail_waiting(run, failure)
        elif self._uploads.take(run, now):
            self._intake.watch(run)
        else:
            return False
        return True

    def _begin(self, run: Run, now: float) -> None:
        """The run is complete, and its turn: to the replicas that may have it already, or to the one that gets it."""
        options, caller = run.options, run.caller
        if options.stop_generation and caller.has_stopped(options.ordering_key, options.stop_generation, run.ids[0]):
            self._outcomes.fail_waiting(run, failures.PREDECESSOR_FAILED)
            return
        if caller.session is not None and self._resumptions.take(run, now, resent=run.may_have_run):
            return
        endpoint = self.topology.endpoints.get(run.endpoint)
        # Drawn before, sent after the primary: a shadow takes nothing that the caller could have had.
        is_copied = endpoint is not None and endpoint.traffic.shadows and not run.may_have_run
        copies = self._intake.draw_copies(run) if is_copied else ()
        self._intake.route(run, now)
        for copy in copies:
            self._intake.send_copy(copy, now)

    def fetch(self, caller: Caller, endpoint: str, answered: DeliverResults, now: float) -> list[Command]:
        """The payloads of these results were dropped here: asks the replica, which keeps them, once more."""
        self._seq += 1
        options = replace(answered.options, partition=-1, timeout_s=inf)
        payloads = [b""] * len(answered.ids)
        run = Run(self._seq, caller, endpoint, options, answered.ids, payloads, now)
        run.may_have_run = run.was_answered = True
        caller.runs[run] = None
        if answered.replica.linked:
            self._intake.recover(run, answered.replica, now)
        else:
            self._outcomes.fail_waiting(run, failures.result_evicted(answered.replica))
        return self._commands(now)

    def disconnected(self, caller: CallerBook, now: float) -> list[Command]:
        """The connection of a session is gone: what replicas have of it goes on there, the rest will be sent again."""
        self._uploads.left(caller)
        if caller.session is not None:
            self._resumptions.left(caller.session)
        self._withdrawn(cancellation.leave(caller, self._outcomes), now)
        if caller.session is not None:
            self._joined(self._acknowledgements.left(caller.session), now)
        return self._commands(now)

    def cancel(self, caller: Caller, now: float) -> list[Command]:
        """The caller is gone: what it has not heard of is CANCELLED."""
        self._uploads.left(caller)
        self._withdrawn(cancellation.cancel_caller(caller, self._outcomes), now)
        if caller.request_id and (alone := self._slots.left(caller)) is not None:
            self._withdrawn(cancellation.cancel_caller(alone, self._outcomes), now)
        return self._commands(now)

    def cancel_calls(self, caller: Caller, ranges: Iterable[tuple[int, int]], now: float) -> list[Command]:
        """The caller takes calls back: ids from first to last, both included. Those that have ended stay so."""
        self._withdrawn(cancellation.cancel_calls(caller, ranges, self._outcomes), now)
        return self._commands(now)

    # -- slots -----------------------------------------------------------------------------------------------------

    def reserve(
        self, caller: Caller, endpoint: str, options: CallOptions, wanted: Reserve, now: float, request_id: str = ""
    ) -> list[Command]:
        """A reservation; it ends with a DeliverSlot or a DeliverFailure.

        Who repeats a request id has the same slot, or waits with whoever was first, until all of them have left.
        """
        owner: Caller | None = caller
        if request_id:
            owner = self._slots.find(caller, request_id, Wish.of(endpoint, options, wanted), options.timeout_s, now)
        if owner is not None:
            run = self._slot_run(owner, endpoint, options, b"", wanted, now)
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.no_slot(run, now))
            else:
                self._intake.route(run, now)
        return self._commands(now)

    def dispatch(
        self, caller: Caller, key: ReplicaKey, options: CallOptions, payload: Payload, into: Dispatch, now: float
    ) -> list[Command]:
        """A call in a slot that this replica has given. Never sent twice."""
        self.counters.calls[self.counters.label(into.endpoint),] += 1
        run = self._slot_run(caller, into.endpoint, options, payload, into, now)
        if run.deadline <= now:
            self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
        else:
            self._slots.bind(run, key, now)
        return self._commands(now)

    def slot_op(self, caller: Caller, key: ReplicaKey, op: Renew | Release, now: float) -> list[Command]:
        """A slot of this replica is to be held for longer, or given back."""
        self._slots.bind(self._slot_run(caller, "", NO_OPTIONS, b"", op, now), key, now)
        return self._commands(now)

    def give_back(self, key: ReplicaKey, token: str, now: float) -> list[Command]:
        """A slot was granted, and nobody will use it: it is released, and nobody hears of that."""
        self._slots.give_back(key, token, now)
        return self._commands(now)

    def _slot_run(
        self, caller: Caller, endpoint: str, options: CallOptions, payload: Payload, work: SlotWork, now: float
    ) -> Run:
        self._seq += 1
        run = Run(self._seq, caller, endpoint, options, ONE_CALL, [payload], now, slot=work)
        caller.runs[run] = None
        return run

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

    def cut_ops(self, replica: Replica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of slot operations carries; it goes ahead of runs. Call `expire` before."""
        return cut_ops(replica, max_bytes)

    def slots_answered(
        self, replica: Replica, answers: Iterable[SlotAnswer], capacity: Capacity | None, now: float
    ) -> list[Command]:
        """The replica has answered slot operations; `capacity` is its load after them, where it tells."""
        self._slots.answered(replica, answers, capacity, now)
        self._end_overdue(now)
        self._sender.pump(replica, now)
        return self._commands(now)

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
        self._end_overdue(now)
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
            self._slots.table_changed(now)
        return self._commands(now)

    @property
    def shadows_under_way(self) -> int:
        """Sampled copies at replicas."""
        return self._intake.copies

    def next_deadline(self) -> float | None:
        """When the shell must call `expire`; None when nothing can expire."""
        due, asked = self._deadlines.next_deadline(), self._resumptions.next_deadline()
        over, join = self._slots.next_deadline(), self._acknowledgements.next_deadline()
        stalled = self._uploads.next_deadline()
        if asked is None and over is None and join is None and stalled is None:
            return due
        return min(each for each in (due, asked, over, join, stalled) if each is not None)

    def expire(self, now: float) -> list[Command]:
        """Fails every call whose deadline or queue time has passed."""
        self._end_overdue(now)
        for alone in self._slots.expire(now):
            self._withdrawn(cancellation.cancel_caller(alone, self._outcomes), now)
        self._resumptions.expire(now)
        for run, failure in self._uploads.pop_stalled(now):
            self._outcomes.fail_waiting(run, failure)
        self._joined(self._acknowledgements.expire(now), now)
        return self._commands(now)

    def _end_overdue(self, now: float) -> None:
        withdrawn = cancellation.Withdrawn()
        for run in self._deadlines.pop_due(now):
            if run.reserves:
                self._end_reservation(run, withdrawn, now)
            elif run.asked_until <= now:
                run.asked_until = inf
                for sent in list(run.sents):
                    self._outcomes.stop_asking(sent, list(sent.asked or ()))
            elif run.deadline <= now and not run.is_overdue:
                run.is_overdue = True
                running = partial(failures.deadline_running, run)
                cancellation.end_run(run, self._outcomes, failures.deadline_in_queue(run), running, withdrawn)
            elif run.waiting and run.account is not None:
                limit_s = run.account.max_queue_time_s
                if run.arrived + limit_s <= now:
                    cancellation.drop_waiting(run, self._outcomes, failures.queue_timeout(run, limit_s))
                elif run.account.too_late(run) <= now:
                    cancellation.drop_waiting(run, self._outcomes, failures.too_late(run, run.deadline - now))
            elif run.slot is not None:
                self._slots.end_link_wait(run, withdrawn)
            elif run.session is not None and self._suspended.since(run.session) + HOLD_S <= now:
                cancellation.drop_waiting(run, self._outcomes, failures.NOT_ACKNOWLEDGED)
            if run.unanswered:
                self._intake.watch(run)
        self._withdrawn(withdrawn, now)

    def _end_reservation(self, run: Run, withdrawn: Withdrawn, now: float) -> None:
        """The time of a reservation, or its time in the queue, may be up. For its caller both are the same."""
        limit_s = run.account.max_queue_time_s if run.account is not None and run.waiting else inf
        if min(run.deadline, run.arrived + limit_s) <= now:
            failure = failures.no_slot(run, now)
            cancellation.end_run(run, self._outcomes, failure, lambda _: failure, withdrawn)

    def _joined(self, replicas: Sequence[Replica], now: float) -> None:
        """These replicas take calls from now on, as far as they are linked."""
        if not replicas:
            return
        for partition in self.topology.partitions():
            self._sender.list(partition)
        for replica in replicas:
            self._sender.pump(replica, now)

    # -- the way back ----------------------------------------------------------------------------------------------

    def _withdrawn(self, withdrawn: Withdrawn, now: float) -> None:
        """Slices left their outboxes: their replicas have room, and their partitions may go on."""
        for run in withdrawn.survivors:
            self._intake.watch(run)
        for run in withdrawn.asked:
            run.asked_until = min(run.asked_until, now + cancellation.PATIENCE_S)
            self._intake.watch(run)
        if not withdrawn.slices:
            return
        connected = self.topology.connected
        replicas = [connected[sent.replica] for sent in withdrawn.slices]
        for sent, replica in zip(withdrawn.slices, replicas, strict=True):
            self._answers.settle_partition(sent, now)
            replica.backend.balancer.changed(replica)
        for replica in dict.fromkeys(replicas):
            self._sender.pump(replica, now)

    def _commands(self, now: float) -> list[Command]:
        """What was decided, once all that follows from it was."""
        while self._outcomes.stopped:
            caller, key = self._outcomes.stopped.pop()
            self._withdrawn(cancellation.stop_after(caller, key, self._outcomes), now)
        if self._outcomes.unbrought:
            ended = self._outcomes.unbrought.copy()
            self._outcomes.unbrought.clear()
            for run in self._uploads.release_ended(ended):
                self._begin(run, now)
            return self._commands(now)
        out = self._out.copy()
        self._out.clear()
        return self._slots.told(out, now) if self._slots.requests.pending else out
