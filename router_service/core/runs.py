"""Runs of calls, and the parts of them that were sent: the records that admission, queues and replicas pass around.

Invariants: one object per run, never one per call. `0 <= cursor <= len(payloads)`; calls before the cursor were sent
(or failed), those behind it wait. `unanswered` counts the calls of the run without an outcome; it reaches 0 exactly
once.
Owner: the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar, Protocol

from router_service.core.calls import (
    CallPayload,
    FirstAttempt,
    Flow,
    KeyOrder,
    PartitionColumn,
    Reserve,
    RouterCallOptions,
    SlotWork,
)
from router_service.core.limits.admission import Account
from router_service.core.limits.capacity import UNKNOWN_NS, MethodTime
from router_service.core.limits.quotas import CallerShare, TenantAccount
from router_service.core.rosters import ReplicaKey, RosterVersion, SessionConnection
from slotmesh.calls.payload_block import PayloadBlock
from slotmesh.calls.trace_context import Traces
from slotmesh.errors import Failure

SLO_UNLESS_STATED_S = 1.0
"""The SLO by which calls without one are ordered, so that calls with an SLO cannot starve them."""


class CallerBook(Protocol):
    """The accounting of a run's caller that runs use. Compared by identity."""

    flow: Flow
    session: SessionConnection | None
    share: CallerShare | None
    runs: dict[RouterRun, None]
    stops: dict[str, dict[int, int]]
    max_value_bytes: int
    knows: frozenset[str] | None

    def stop(self, key: str, generation: int, call_id: int) -> bool:
        """Records a failed call, after which those of its key and generation fail, too. Returns whether it is new."""

    def has_stopped(self, key: str, generation: int, call_id: int) -> bool:
        """Whether this call comes after one of its key and generation that has failed."""

    def stream(self, ids: Sequence[int]) -> int:
        """These calls, which take several results, are being sent. Returns the level of their credit."""


class NamedBackend(Protocol):
    """A backend, as failures name it."""

    name: str


class SliceHolder(Protocol):
    """The replica that has a slice, as its run and its caller use it. Compared by identity."""

    key: ReplicaKey
    linked: bool
    links: int
    listed: bool
    stream_id: str
    times: Mapping[str, MethodTime]

    @property
    def backend(self) -> NamedBackend:
        """The backend of the replica."""

    @property
    def replica_id(self) -> str:
        """The identity that outlives incarnations."""

    def withdraw(self, sent: Sent, parts: Sequence[Sent] = ()) -> None:
        """Withdraws the slice from the outbox; frames carry `parts` of it in its place."""

    def part_of(self, sent: Sent, run: RouterRun) -> Sent:
        """A slice that no frame has carried has become smaller: what remains of it is all of `run`."""


class RouterRun:
    """Consecutive calls of one caller that share their options. `tenant` counts them, if they name one."""

    __slots__ = (
        *("__weakref__", "account", "alarm", "arrived", "asked_until", "attempt", "awaits", "caller", "column"),
        *("deadline", "endpoint", "first_roster", "has_left", "ids", "is_overdue", "may_have_run", "options", "origin"),
        *("partition", "payloads", "recovers", "sents", "seq", "session", "shadow_of", "slot", "tenant", "traces"),
        *("cursor", "unanswered", "was_answered"),
    )

    def __init__(
        self,
        seq: int,
        caller: CallerBook,
        endpoint: str,
        options: RouterCallOptions,
        ids: Sequence[int],
        payloads: Sequence[CallPayload],
        arrived: float,
        *,
        slot: SlotWork | None = None,
    ) -> None:
        self.seq = seq
        """Age: earlier runs have lower numbers. Slices of one run share it."""
        self.caller, self.tenant = caller, _NO_TENANT
        self.endpoint = endpoint
        self.options = options
        self.ids = ids
        """The client's call ids, parallel to `payloads`: a range, or a list where they are sparse."""
        self.payloads = payloads
        self.arrived = arrived
        self.deadline = arrived + options.timeout_s
        """Monotonic seconds; infinite without one."""
        self.slot = slot
        """The operation on a slot, in a run of one call; None for calls that use no slot."""
        self.attempt = 0
        self.awaits = False
        """Its payload is still arriving; the run has one call."""
        self.origin: FirstAttempt | None = None
        """Of calls without a session that run once more."""
        self.cursor = 0
        self.unanswered = len(payloads)
        self.sents: list[Sent] = []
        self.partition: KeyOrder | None = None
        self.column: PartitionColumn | None = None
        """The `partition`, where the calls have keys of their own: they were sent as a whole then."""
        self.account: Account | None = None
        """The account that the waiting calls are charged to; None while none wait."""
        self.alarm = inf
        """When its deadline or queue time is checked next; infinite while it is not watched."""
        self.is_overdue = False
        """Its deadline has passed, and its replicas were asked to stop its calls."""
        self.asked_until = inf
        """When the caller gets the failure of calls that replicas were asked to stop; infinite if none was asked."""
        self.shadow_of: str | None = None
        """The backend that these sampled copies are for; None for calls of a caller."""
        self.session = caller.session
        """The session of the calls, if a replica is to keep their outcomes."""
        self.has_left = False
        """The connection of its session is closed; the outcomes can be fetched from the replicas later."""
        self.may_have_run = False
        """An earlier connection has sent these calls, and their fate is unknown."""
        self.first_roster: RosterVersion | None = None
        """The newest roster that the client of resent calls knew when it first sent them; None if it names none."""
        self.was_answered = False
        """The router has received the outcomes before, and fetches them once more."""
        self.recovers = False
        """A replica already has these calls: only their outcomes are fetched."""
        self.traces: Traces | None = None
        """Trace contexts by call id, kept as long as the payloads; None if no call has one."""

    @property
    def reserves(self) -> bool:
        """Whether it is a reservation: it executes nothing, and may be routed again any number of times."""
        return isinstance(self.slot, Reserve)

    @property
    def waiting(self) -> int:
        """Calls that were neither sent nor failed."""
        return len(self.payloads) - self.cursor

    @property
    def age(self) -> tuple[int, int]:
        """The position of the waiting part in a queue: by arrival, then by call id."""
        return self.seq, self.ids[self.cursor]

    @property
    def due(self) -> float:
        """When its calls should be answered, monotonic seconds."""
        slo_s = self.options.slo_s
        return self.arrived + (SLO_UNLESS_STATED_S if slo_s is None else slo_s)

    def handed_back(self, lo: int, hi: int, *, attempt: int) -> list[RouterRun]:
        """Some of the calls, which a replica had, as runs that can wait, of one ordering key each."""
        column = self.column
        if column is None:
            return [self.slice(lo, hi, attempt=attempt)]
        runs: list[RouterRun] = []
        for begin, end, options, partition in column.by_key(lo, hi):
            run = self.slice(begin, end, attempt=attempt, options=options)
            run.partition, run.column = partition, None
            runs.append(run)
        return runs

    def slice(
        self, lo: int, hi: int, *, attempt: int | None = None, options: RouterCallOptions | None = None
    ) -> RouterRun:
        """A new run of some of the calls, as old as this one, with nothing sent.

        Payloads of a block are separated: parts of a block would be copies that keep as much memory again.
        """
        if type(self.payloads) is PayloadBlock and hi - lo < len(self.payloads):
            self.payloads = self.payloads.cut()
        part = RouterRun(
            self.seq,
            self.caller,
            self.endpoint,
            self.options if options is None else options,
            self.ids[lo:hi],
            self.payloads[lo:hi],
            self.arrived,
            slot=self.slot,
        )
        part.attempt = self.attempt if attempt is None else attempt
        if self.origin is not None:
            part.origin = FirstAttempt(self.origin.stream_id, self.origin.run_ids[lo:hi])
        part.partition = self.partition
        if self.column is not None:
            part.partition = part.column = self.column.part(lo, hi)
        part.shadow_of, part.tenant = self.shadow_of, self.tenant
        part.may_have_run, part.was_answered = self.may_have_run, self.was_answered
        part.first_roster, part.traces = self.first_roster, self.traces
        part.recovers = self.recovers and attempt is None
        if self.slot is not None:
            part.deadline = self.deadline
        return part

    def drop_waiting(self, gone: Sequence[int]) -> None:
        """Takes the calls at these indices, all at or behind the cursor, out of the run."""
        dropped = frozenset(gone)
        kept = [at for at in range(len(self.payloads)) if at not in dropped]
        self.ids = [self.ids[at] for at in kept]
        self.payloads = [self.payloads[at] for at in kept]
        if self.origin is not None:
            self.origin = FirstAttempt(self.origin.stream_id, [self.origin.run_ids[at] for at in kept])


_NO_TENANT: TenantAccount | None = None
OPEN, ANSWERED, ABANDONED = 0, 1, 2


class Sent:
    """A slice of a run at a replica: `count` calls, from the run's index `lo`.

    It gets run ids when the frame that carries it is cut; before that it can be withdrawn without a trace.
    """

    __slots__ = (
        *("asked", "call_ns", "count", "first", "lo", "owner_epoch"),
        *("remaining", "replica", "run", "sent_at", "states", "valued"),
    )

    takes_room: ClassVar[bool] = True
    """It counts towards the capacity that its replica reported."""

    def __init__(self, run: RouterRun, lo: int, count: int, replica: SliceHolder, owner_epoch: int, now: float) -> None:
        self.first = 0
        """Run id of the first call, consecutive from there; 0 until a frame carries it."""
        self.run = run
        self.lo = lo
        self.count = count
        self.remaining = count
        """Calls that the replica has not answered."""
        self.states: bytearray | None = None
        """One byte a call: OPEN, ANSWERED, or ABANDONED (the caller has its outcome, the replica still owes an answer).
        None while all are OPEN."""
        self.asked: dict[int, Failure] | None = None
        """Calls that fail unless the replica reports that they have ended: offset -> the failure to deliver then."""
        self.valued: set[int] | None = None
        """Offsets of idempotent calls of which a value has been passed on: they are not executed again."""
        self.replica = replica
        self.owner_epoch = owner_epoch
        """Epoch of the partition's owner at sending; 0 without an ordering key, and where each call has its own."""
        self.sent_at = now
        time = replica.times.get(run.options.method) if run.slot is None else None
        self.call_ns = UNKNOWN_NS if time is None else time.call_ns
        """Work that each call is at the replica, as it was known at sending; nanoseconds."""

    def take(self, offset: int, count: int) -> list[tuple[int, int]]:
        """The replica has answered these calls; returns those that a caller still waits for, as (offset, count)."""
        states = self.states
        if states is None:
            if count == self.count:
                self.remaining = 0
                return [(0, count)]
            states = self.states = bytearray(self.count)
        end = offset + count
        self.remaining -= count - states.count(ANSWERED, offset, end)
        fresh = _open_spans(states, offset, end)
        states[offset:end] = _ANSWERED * count
        return fresh

    def open_parts(self, offset: int = 0, count: int | None = None) -> list[tuple[int, int]]:
        """Those of these calls, or of all, that a caller still waits for, as (offset, count)."""
        end = self.count if count is None else offset + count
        if self.states is None:
            return [(offset, end - offset)] if self.remaining else []
        return _open_spans(self.states, offset, end)

    def note_value(self, offset: int) -> None:
        """A value of this call has been passed on."""
        if self.valued is None:
            self.valued = set()
        self.valued.add(offset)

    def abandon(self, offset: int, count: int) -> None:
        """No caller waits for the open ones among these calls any more."""
        if self.states is None:
            self.states = bytearray(self.count)
        for begin, many in _open_spans(self.states, offset, offset + count):
            self.states[begin : begin + many] = _ABANDONED * many


class Bound(Sent):
    """An operation in a slot of this replica, which takes no room beyond that of the slot."""

    __slots__ = ()

    takes_room: ClassVar[bool] = False


_ANSWERED, _ABANDONED = bytes([ANSWERED]), bytes([ABANDONED])
_OPEN_SPAN = re.compile(rb"\x00+")


def _open_spans(states: bytearray, start: int, end: int) -> list[tuple[int, int]]:
    """Where OPEN stands, as (offset, count), in order."""
    return [(found.start(), found.end() - found.start()) for found in _OPEN_SPAN.finditer(states, start, end)]
