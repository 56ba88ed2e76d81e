"""Runs of calls, and the parts of them that were sent: the records that admission, queues and replicas pass around.

Invariants: one object per run, never one per call. `0 <= cursor <= len(payloads)`; calls before the cursor were sent
(or failed), those behind it wait. `unanswered` counts the calls of the run without an outcome; it reaches 0 exactly
once.
Owner: the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import ClassVar, Final

from router_service.core.callers import LaneStops, Window, WindowUse, level_of
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
from router_service.core.limits.capacity import UNKNOWN_NS, KnownReplica
from router_service.core.limits.quotas import CallerShare
from router_service.core.limits.tenant_limits import TenantAccount
from router_service.core.rosters import ReplicaKey, RosterVersion, SessionConnection
from router_service.core.run_states import NEW, NO_EARLIER, RECOVERED, Earlier, RunState
from slotmesh.calls.payload_block import PayloadBlock, nbytes_of
from slotmesh.calls.trace_context import Traces
from slotmesh.errors import Failure
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES

SLO_UNLESS_STATED_S = 1.0
"""The SLO by which calls without one are ordered, so that calls with an SLO cannot starve them."""
NO_REPLICAS: Final[Mapping[ReplicaKey, int]] = {}


class Caller(WindowUse):
    """One caller (a client's stream, or one unary call): its accounting, and its open runs. Compared by identity."""

    __slots__ = ("flow", "knows", "max_value_bytes", "request_id", "runs", "session", "stops", "streams")

    def __init__(
        self,
        window: Window,
        flow: Flow | None = None,
        session: SessionConnection | None = None,
        *,
        max_value_bytes: int = MAX_PAYLOAD_BYTES,
        share: CallerShare | None = None,
    ) -> None:
        """`flow`: a new one by default. `share`: of the identified caller; None if it has no identity."""
        super().__init__(window, share)
        self.session = session
        """The session's connection; None without a session: then the caller's calls end when it disconnects."""
        self.flow = flow or Flow()
        self.runs: dict[RouterRun, None] = {}
        """Runs with calls that have no outcome, in order of arrival."""
        self.stops = LaneStops(share)
        self.streams: dict[int, int] = {}
        """Its calls that take several results, from when they were sent until their outcome has left: id, and level of
        credit."""
        self.request_id = ""
        """Id of the reservation that it waits for, perhaps with others; empty if it waits for none."""
        self.knows: frozenset[str] | None = None
        """The endpoints that failures may name to it; None: all."""
        self.max_value_bytes = max_value_bytes
        """Larger results, and larger values of handlers that yield, fail their call."""

    @property
    def has_open_calls(self) -> bool:
        """Whether any of its calls has no outcome."""
        return bool(self.runs)

    def count_quick(self, is_quick: Callable[[str], bool], most: int) -> int:
        """Calls without an outcome whose methods are quick; more than `most` need not be counted."""
        calls = 0
        for run in self.runs:
            calls += run.unanswered if is_quick(run.options.method) else 0
            if calls >= most:
                break
        return calls

    def ids_apart(self, runs: int) -> list[int]:
        """The last call ids of every `runs`-th open run: points at which work on all of them can pause."""
        return [run.ids[-1] for run in islice(self.runs, runs - 1, None, runs) if run.ids]

    def leave(self) -> None:
        """The stream or rpc has ended: its calls count no more, whatever becomes of them."""
        if self.share is not None:
            self.share.give(self.calls, self.size)
            self.share.give_keys(len(self.stops))
            self.share = self.stops.share = None

    def stream(self, ids: Sequence[int]) -> int:
        """These calls, which take several results, are being sent. Returns the level of their credit."""
        streams = self.streams
        streams.update(dict.fromkeys(ids, 0))
        level = level_of(len(streams))
        streams.update(dict.fromkeys(ids, level))
        return level


class RouterRun:
    """Consecutive calls of one caller that share their options. `tenant` counts them, if they name one."""

    __slots__ = (
        *("__weakref__", "account", "alarm", "arrived", "asked_until", "attempt", "caller", "cursor", "deadline"),
        *("delayed_at", "earlier", "endpoint", "first_roster", "ids", "looked_up", "options", "origin", "partition"),
        *("payloads", "sents", "seq", "shadow_of", "slot", "state", "tenant", "traces", "unanswered"),
    )

    def __init__(
        self,
        seq: int,
        caller: Caller,
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
        self.caller = caller
        self.tenant: TenantAccount | None = None
        self.endpoint, self.options = endpoint, options
        self.ids = ids
        """The client's call ids, parallel to `payloads`: a range, or a list where they are sparse."""
        self.payloads, self.arrived = payloads, arrived
        self.deadline = arrived + options.timeout_s
        """Monotonic seconds; infinite without one."""
        self.slot = slot
        """The operation on a slot, in a run of one call; None for calls that use no slot."""
        self.state: RunState = NEW
        """Changed by `Step.advance` only."""
        self.earlier: Earlier = NO_EARLIER
        """What is known of an earlier sending."""
        self.attempt = 0
        self.origin: FirstAttempt | None = None
        """Of calls without a session that run once more."""
        self.looked_up = NO_REPLICAS
        """Earlier owners at which a call with a request id was looked up, and the newest epoch of each at that time."""
        self.cursor, self.unanswered = 0, len(payloads)
        self.sents: list[Sent] = []
        self.partition: KeyOrder | PartitionColumn | None = None
        self.account: Account | None = None
        """The account that the waiting calls are charged to; None while none wait."""
        self.alarm = inf
        """When its deadline or queue time is checked next; infinite while it is not watched."""
        self.asked_until = inf
        """When the caller gets the failure of calls that replicas were asked to stop; infinite if none was asked."""
        self.delayed_at = inf
        """When it was first delayed though a replica had room (`preferences/delays`); infinite before that."""
        self.shadow_of: str | None = None
        """The backend that these sampled copies are for; None for calls of a caller."""
        self.first_roster: RosterVersion | None = None
        """The newest roster that the client of resent calls knew when it first sent them; None if it names none."""
        self.traces: Traces | None = None
        """Trace contexts by call id, kept as long as the payloads; None if no call has one."""

    @property
    def column(self) -> PartitionColumn | None:
        """The `partition`, if the calls have keys of their own: they were sent as a whole then. Otherwise None."""
        return self.partition if type(self.partition) is PartitionColumn else None

    @property
    def session(self) -> SessionConnection | None:
        """The session of the calls, if a replica is to keep their outcomes."""
        return self.caller.session

    @property
    def reserves(self) -> bool:
        """Whether it is a reservation: it executes nothing, and may be routed again any number of times."""
        return isinstance(self.slot, Reserve)

    @property
    def recovers(self) -> bool:
        """Whether a replica already has these calls, and only their outcomes are asked for."""
        return self.earlier in RECOVERED

    @property
    def is_behind_failure(self) -> bool:
        """Whether it comes after a failure of its lane, which stops there."""
        key, generation = self.options.ordering_key, self.options.stop_generation
        return generation > 0 and self.caller.stops.has_stopped(key, generation, self.ids[0])

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

    @property
    def useless_at(self) -> float:
        """When sending it is of no use any more, monotonic seconds; infinite without a deadline."""
        if self.slot is not None or self.account is None:
            return self.deadline
        return self.deadline - self.account.service_time.reserve_s(self.deadline - self.arrived)

    def charge(self, account: Account) -> int:
        """Charges the account for the first waiting calls that it has room for; returns how many these are."""
        fits = account.admit(self.caller.flow, self.tenant, self.payloads, self.cursor)
        if fits:
            self.account = account
        return fits

    def charge_all(self, account: Account) -> None:
        """Charges the account for all waiting calls, which were admitted before, over its bounds if need be."""
        account.add(self.caller.flow, self.tenant, self.waiting, nbytes_of(self.payloads, self.cursor))
        self.account = account

    def refused_by(self, account: Account, fits: int, now: float, chance: float, why: str = "") -> Failure:
        """The failure of the waiting calls but the first `fits`, for which the account has no room."""
        flow, size = self.caller.flow, len(self.payloads[self.cursor + fits])
        return account.full(now, chance, why, flow=flow, tenant=self.tenant, size=size)

    def release(self, count: int) -> None:
        """The next `count` waiting calls no longer wait where they were charged."""
        if self.account is not None:
            size = nbytes_of(self.payloads, self.cursor, self.cursor + count)
            self.account.give(self.caller.flow, self.tenant, count, size)

    def uncharge(self) -> None:
        """No call of the run waits any longer where it was charged."""
        if self.waiting:
            self.release(self.waiting)
        self.account = None

    def handed_back(self, lo: int, hi: int, *, attempt: int) -> list[RouterRun]:
        """Some of the calls, which a replica had, as runs that can wait, of one ordering key each."""
        if (column := self.column) is None:
            return [self.slice(lo, hi, attempt=attempt)]
        runs: list[RouterRun] = []
        for begin, end, options, partition in column.by_key(lo, hi):
            run = self.slice(begin, end, attempt=attempt, options=options)
            run.partition = partition
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
        part.partition = self.partition if self.column is None else self.column.part(lo, hi)
        part.shadow_of, part.tenant, part.looked_up = self.shadow_of, self.tenant, self.looked_up
        part.first_roster, part.traces = self.first_roster, self.traces
        part.earlier = self.earlier if attempt is None or not self.recovers else Earlier.UNKNOWN
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


OPEN, ANSWERED, ABANDONED = 0, 1, 2


class Sent:
    """A slice of a run at a replica: `count` calls, from the run's index `lo`.

    It gets run ids when the frame that carries it is cut; before that it can be withdrawn without a trace.
    """

    __slots__ = (
        *("asked", "begun", "call_ns", "count", "first", "is_cold", "lo", "owner_epoch"),
        *("remaining", "replica", "run", "sent_at", "states"),
    )

    takes_room: ClassVar[bool] = True
    """It counts towards the capacity that its replica reported."""

    def __init__(
        self, run: RouterRun, lo: int, count: int, replica: KnownReplica, owner_epoch: int, now: float
    ) -> None:
        self.first = 0
        """Run id of the first call, consecutive from there; 0 until a frame carries it."""
        self.run, self.lo, self.count = run, lo, count
        self.remaining = count
        """Calls that the replica has not answered."""
        self.states: bytearray | None = None
        """One byte a call: OPEN, ANSWERED, or ABANDONED (the caller has its outcome, the replica still owes an answer).
        None while all are OPEN."""
        self.asked: dict[int, Failure] | None = None
        """Calls that fail unless the replica reports that they have ended: offset -> the failure to deliver then."""
        self.begun: set[int] | None = None
        """Offsets of calls whose handler is known to have begun: they are not sent again. Others may have, too."""
        self.replica = replica
        self.owner_epoch = owner_epoch
        """Epoch of the partition's owner at sending; 0 without an ordering key, and where each call has its own."""
        self.sent_at = now
        time = replica.times.get(run.options.method) if run.slot is None else None
        self.call_ns = UNKNOWN_NS if time is None else time.call_ns
        """Work that each call is at the replica, as it was known at sending; nanoseconds."""
        self.is_cold = (model := run.options.model_id) != "" and model not in replica.models
        """The replica had not reported their model at sending: they may wait for its load."""

    def part(self, run: RouterRun) -> Sent:
        """The slice has become smaller before a frame carried it: what remains of it is all of `run`."""
        part = Sent(run, 0, len(run.payloads), self.replica, self.owner_epoch, self.sent_at)
        part.call_ns = self.call_ns
        run.cursor = part.count
        run.sents.append(part)
        if run.partition is not None:
            run.partition.sent(self.owner_epoch)
        return part

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

    def note_begun(self, offset: int) -> None:
        """The handler of this call has begun."""
        if self.begun is None:
            self.begun = set()
        self.begun.add(offset)

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
