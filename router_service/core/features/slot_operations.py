"""Operations on slots: which are pending, and the fate of those that are bound to a replica.

Purpose: a reservation is routed, queued, moved and cancelled as a call is; this module has the differences. Operations
on a granted slot are *bound* to the replica that granted it. `slot_answers` has how operations begin, and what
replicas' answers mean.
Invariants: every operation ends with exactly one delivery to its caller. A slot that was granted to a caller that no
longer waits is released immediately. A bound operation is never sent twice, or elsewhere. `cut_ops` assigns ids when a
frame is cut, out of the sequence of the run ids, so whatever names runs names operations, too; operations are sent
before runs, in order of arrival. A frame has at most `MAX_FRAME_OPS` operations, and exceeds `max_bytes` of payload
only for a single call.
Owner: the scheduler, which pumps afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import assert_never, cast

from router_service.core import balancers, failures
from router_service.core.callers import Window
from router_service.core.calls import (
    NO_OPTIONS,
    Dispatch,
    LeasedSlot,
    LookUpSlot,
    Release,
    Renew,
    Reserve,
    RouterCallOptions,
)
from router_service.core.commands import DeliverFailure, DeliverSlot, RouterCommand, Step
from router_service.core.events import SlotAbandoned
from router_service.core.features.routed_slots import RoutedSlots
from router_service.core.features.slot_look_ups import SlotLookUps
from router_service.core.features.slot_requests import ONE_CALL, Lease, RequestedSlot, Requests
from router_service.core.lifecycle.deadlines_and_cancellation import EarlyEnds
from router_service.core.lifecycle.feature import ALWAYS, Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.look_ups import LINK_WAIT_S
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey
from router_service.core.routing.waiting_causes import why_not_load
from router_service.core.run_states import RunEvent
from router_service.core.runs import Caller, RouterRun, Sent
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Payload

MAX_FRAME_OPS = 128


@dataclass(slots=True, eq=False)
class OutgoingReserve:
    """Lease a slot."""

    op_id: int
    identity: str
    """Here and below, the identity of the caller; empty if callers are not authenticated."""
    endpoint: str
    options: RouterCallOptions
    ttl_s: float
    deadline: float
    """Monotonic seconds; infinite without one."""
    request: ReservationIdentity | None
    """What identifies the reservation, if its caller may repeat it."""


@dataclass(slots=True, eq=False)
class OutgoingLookUp:
    """Look for the slot of a reservation."""

    op_id: int
    identity: str
    request: ReservationIdentity


@dataclass(slots=True, eq=False)
class OutgoingDispatch:
    """Run a call in a slot; its result comes as that of run `op_id`."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    endpoint: str
    options: RouterCallOptions
    payload: Payload
    deadline: float
    """Monotonic seconds; infinite without one."""
    endpoints: frozenset[str] | None
    """Here and below, the endpoints whose slots the caller may see; None: all."""


@dataclass(slots=True, eq=False)
class OutgoingRenew:
    """Prolong a lease."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    ttl_s: float
    endpoints: frozenset[str] | None


@dataclass(slots=True, eq=False)
class OutgoingRelease:
    """Give a slot back."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    endpoints: frozenset[str] | None
    request: ReservationIdentity | None
    """If set: the slot is kept if a newer attempt has found it."""


OutgoingOp = OutgoingReserve | OutgoingDispatch | OutgoingRenew | OutgoingRelease | OutgoingLookUp


def cut_ops(replica: RoutedReplica, max_bytes: int) -> list[OutgoingOp]:
    """Takes operations out of the replica's, oldest first, until one of the bounds is reached; numbers them."""
    ops: list[OutgoingOp] = []
    size = 0
    waiting = replica.ops
    while waiting and len(ops) < MAX_FRAME_OPS:
        size += len(waiting[0].run.payloads[0])
        if ops and size > max_bytes:
            break
        sent = waiting.popleft()
        replica.inflight.number(sent)
        ops.append(_op(sent))
    return ops


def _op(sent: Sent) -> OutgoingOp:
    run = sent.run
    match run.slot:
        case Reserve(ttl_s=ttl_s, identity=who, request=request):
            return OutgoingReserve(sent.first, who, run.endpoint, run.options, ttl_s, run.deadline, request)
        case Dispatch(token=token, endpoint=endpoint, identity=who, endpoints=known):
            payload = cast("Payload", run.payloads[0])  # it came in one piece
            return OutgoingDispatch(sent.first, who, token, endpoint, run.options, payload, run.deadline, known)
        case Renew(token=token, ttl_s=ttl_s, identity=who, endpoints=known):
            return OutgoingRenew(sent.first, who, token, ttl_s, known)
        case Release(token=token, identity=who, endpoints=known, request=request):
            return OutgoingRelease(sent.first, who, token, known, request)
        case LookUpSlot(request=request, identity=who):
            return OutgoingLookUp(sent.first, who, request)
        case None:
            raise AssertionError("calls without a slot travel in frames of runs")
        case never:
            assert_never(never)


TABLE_WAIT_S = 1.0
"""What is bound to a replica that the table does not name waits this time for a newer table."""
DEFAULT_PATIENCE_S = 30.0


class RoutedSlotOperations(Feature):
    """Pending operations, and requests for slots that several callers may wait for."""

    def __init__(self, intake: RoutingIntake, ends: EarlyEnds) -> None:
        self._topology = intake.topology
        self._outcomes = intake.outcomes
        self._deadlines = intake.deadlines
        self._sender = intake.sender
        self._ends = ends
        self._nobody = Caller(Window(0, 0))
        """The caller in whose name slots are released that no client waits for."""
        self._unknown: deque[tuple[float, RouterRun, ReplicaKey]] = deque()
        """What waits for a table that names its replica, and until when; oldest first. Some may have ended."""
        self.requests = Requests()
        self.routed = RoutedSlots()
        self.look_ups = SlotLookUps(intake, self.requests, self._bind)

    @property
    def under_way(self) -> Collection[object]:
        """Callers in whose names reservations are made that several may wait for."""
        return self.requests.pending

    @property
    def waits(self) -> Collection[object]:
        """Reservations, leases and operations do, each in a place of its own."""
        return ALWAYS

    # -- how they begin ----------------------------------------------------------------------------------------------

    def find(
        self, caller: Caller, identity: ReservationIdentity, wish: RequestedSlot, timeout_s: float, step: Step
    ) -> Caller | None:
        """The caller under which the reservation of this id begins: one for all that may join it.

        None if no reservation begins: the caller has got the slot, or has joined those that wait for it.
        """
        request = self.requests.find(identity.request_id, step.now)
        if request is not None and request.wish != wish:
            step.commands.append(DeliverFailure(caller, ONE_CALL, failures.request_differs(identity.request_id), 0))
            return None
        if request is not None and request.lease is not None:
            step.commands.append(DeliverSlot(caller, request.lease.at(step.now)))
            return None
        if request is None:
            request = self.requests.begin(identity, wish, caller)
            self.requests.join(request, caller, step.now + timeout_s)
            return request.caller
        request.attempt = max(request.attempt, identity.attempt)
        self.requests.join(request, caller, step.now + timeout_s)
        for run in request.caller.runs:
            run.deadline = max(run.deadline, step.now + (timeout_s if timeout_s != inf else _patience_s(run)))
        return None

    def bind(self, run: RouterRun, key: ReplicaKey, step: Step) -> None:
        """Hands the replica an operation that is bound to it, or fails it where that replica is known to have ended.

        Where the table neither names the replica nor lists it as departed, the operation waits for a newer table.
        """
        work, replica = run.slot, self._topology.replicas.get(key)
        if isinstance(work, Dispatch | Release):
            self.requests.over(work.token)
            routed_to = self.routed.take(work.token)
            if isinstance(work, Dispatch) and replica is not None:
                if routed_to is None:
                    balancers.placed(replica.backend.hooks, replica, 1)
            elif routed_to is not None:
                balancers.abandoned(routed_to.backend.hooks, routed_to, 1)
        if replica is not None:
            self._bind(run, replica, step)
        elif not self._topology.table.revision:
            # It is not known that the replica has ended, and the slot that it may hold cannot be given back.
            self._outcomes.fail_waiting(run, failures.NO_TABLE, step)
        elif self._topology.is_departed(key):
            self._gone(run, key, step)
        else:
            self._unknown.append((step.now + TABLE_WAIT_S, run, key))
            step.advance(run, RunEvent.HELD)
            if run.deadline != inf:
                self._deadlines.watch(run.deadline, run)

    def table_changed(self, step: Step) -> None:
        """There is a newer table: it may know the replicas that the older one did not name."""
        if self._unknown:
            step.then(self._look_again)

    def _look_again(self, step: Step) -> None:
        unknown, self._unknown = self._unknown, deque()
        for until, run, key in unknown:
            replica = self._topology.replicas.get(key)
            if not run.waiting:
                continue
            if replica is not None:
                step.advance(run, RunEvent.RELEASED)
                if isinstance(run.slot, Dispatch):
                    balancers.placed(replica.backend.hooks, replica, 1)
                self._bind(run, replica, step)
            elif self._topology.is_departed(key):
                self._gone(run, key, step)
            else:
                self._unknown.append((until, run, key))

    def _gone(self, run: RouterRun, key: ReplicaKey, step: Step) -> None:
        is_back = any(key[0] == replica_id for replica_id, _ in self._topology.replicas)
        self._outcomes.gone(run, key[0], "has been restarted since" if is_back else "is gone", step)

    def _bind(self, run: RouterRun, replica: RoutedReplica, step: Step) -> None:
        self._sender.bind(run, replica, step)
        when = run.deadline if replica.linked else min(run.deadline, step.now + LINK_WAIT_S)
        if when != inf:
            self._deadlines.watch(when, run)

    def abandoned(self, event: SlotAbandoned, step: Step) -> None:
        """Releases a slot that no caller will use; nothing is delivered."""
        self.bind(self._release(event.token, step.now), event.key, step)

    def release_at(self, replica: RoutedReplica, token: str, request: ReservationIdentity | None, step: Step) -> None:
        """The same, where the table names the replica no more, too: it is there. `request`: of the reservation."""
        self._bind(self._release(token, step.now, request), replica, step)

    def _release(self, token: str, now: float, request: ReservationIdentity | None = None) -> RouterRun:
        work = Release(token=token, request=request)
        run = RouterRun(0, self._nobody, "", NO_OPTIONS, ONE_CALL, [b""], now, slot=work)
        self._nobody.runs[run] = None
        return run

    def overdue(self, run: RouterRun, step: Step) -> Sequence[Sent]:
        """Ends what is bound to a replica that still cannot be reached."""
        ended: list[Sent] = []
        for sent in list(run.sents) if run.slot is not None else ():
            if not sent.takes_room and not sent.first and not sent.replica.linked:
                ended.append(sent)
                if sent.replica.listed:
                    why = f"could not be reached for {LINK_WAIT_S:g} s"
                    unreachable = failures.replica_unreachable(sent.replica.replica_id, why)
                    self._outcomes.failed(sent, 0, 1, unreachable, step)
                else:
                    self._gone(run, sent.replica.key, step)
        return ended

    # -- request ids and time ------------------------------------------------------------------------------------------

    def left(self, caller: Caller, step: Step) -> None:
        """The caller no longer waits for a reservation that others may wait for: it ends if none of them does."""
        if caller.request_id and (request := self.requests.leave(caller)) is not None:
            step.then(partial(self._ends.cancel_caller, request.caller))

    def concluded(self, step: Step) -> None:
        """Copies the outcome of a reservation that several callers wait for to each of them."""
        pending = self.requests.pending
        commands: list[RouterCommand] = []
        for command in step.commands:
            if not isinstance(command, DeliverSlot | DeliverFailure) or command.caller not in pending:
                commands.append(command)
                continue
            request = pending[command.caller]
            lease = None
            if (
                isinstance(command, DeliverSlot)
                and isinstance(command.answer, LeasedSlot)
                and request.replica is not None
            ):
                lease = Lease(command.answer, request.replica, step.now + command.answer.ttl_s)
            commands += (replace(command, caller=waiter) for waiter in self.requests.ended(request, lease))
        step.commands = commands

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None when it has not."""
        if not (self.requests.deadlines.entries or self.routed.leases.entries or self._unknown):
            return None  # most often: this is looked at several times a call
        asked, over = self.requests.next_deadline(), self.routed.next_deadline()
        waited = self._unknown[0][0] if self._unknown else None
        return min((due for due in (asked, over, waited) if due is not None), default=None)

    def expire(self, step: Step) -> None:
        """Ends what is over, and reservations for which no caller waits any more."""
        for replica in self.routed.pop_due(step.now):
            balancers.abandoned(replica.backend.hooks, replica, 1)
        while self._unknown and self._unknown[0][0] <= step.now:
            _, run, key = self._unknown.popleft()
            self._outcomes.fail_waiting(run, failures.replica_not_known(key[0]), step)
        for caller in self.requests.pop_due(step.now):
            request = self.requests.waited_for_by(caller)
            runs = list(request.caller.runs) if request is not None else []
            if runs and runs[0].deadline > step.now:
                step.commands.append(DeliverFailure(caller, ONE_CALL, self._no_slot(runs[0], step.now), 0))
                self.left(caller, step)

    def _no_slot(self, run: RouterRun, now: float) -> Failure:
        return failures.no_slot(run, now, why_not_load(run, run.account, self._topology))


def _patience_s(run: RouterRun) -> float:
    """How long a reservation waits that states no timeout, seconds."""
    return run.account.max_queue_time_s if run.account is not None else DEFAULT_PATIENCE_S
