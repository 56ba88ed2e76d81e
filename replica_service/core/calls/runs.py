"""What the replica moves: runs of calls, the lanes that they wait in, the turns of lanes, and who sent them.

Purpose: the values that the scheduler, batches and executors pass around. One object a run, never one a call.
Invariants: `begin <= lo <= hi <= end <= len(payloads)`; calls before `lo` have been handed to an executor or a batch,
or answered; calls from `lo` to `hi` wait; calls from `hi` on were answered, or belong to a run that was split off. A
run is in its link's `waiting` for as long as one of its calls could still be taken back.
A run keeps its payloads while a call of it is `left`.
Runs of one batch that differ in their ordering keys alone are neighbours: they share `first`, `payloads` and `record`,
so that an index means the same call in all of them.
A link is fresh until `fresh_until`; from then on none of its calls starts, and its runs are parked when they would.
Owner: the scheduler; executors read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol, TypeAlias

from replica_service.core.calls.call_metadata import Arrival, ReplicaCallOptions, RerunOrigin, ReservedSlot, Weighed
from replica_service.core.calls.session_records import Record, Taker
from slotmesh.streams.limits import MAX_INLINE_BYTES

FRESH_S = 3.0
"""Seconds for which a router's echo of a stamp lets its runs start, counted from the stamp."""

RunRecord: TypeAlias = Record["ReplicaRun", "RouterPeer"]
RunTaker: TypeAlias = Taker["ReplicaRun", "RouterPeer"]


class RouterPeer:
    """One router, as far as the core knows it. Compared by identity."""

    __slots__ = (
        "closed",
        "freed_at",
        "fresh_until",
        "handed",
        "has_joined",
        "in_slots",
        "keyed",
        "last_run_id",
        "max_result_bytes",
        "moved",
        "outbox",
        "overrun",
        "parked",
        "requests",
        "sent",
        "splits",
        "stream_id",
        "unkeyed",
        "untold_until",
        "uploads",
        "waiting",
    )

    def __init__(
        self,
        outbox: Any = None,
        *,
        stream_id: str = "",
        fresh_until: float = inf,
        max_result_bytes: int = MAX_INLINE_BYTES,
    ) -> None:
        """`outbox` is the shell's: where answers go. Opaque here."""
        self.outbox = outbox
        self.closed = False
        self.stream_id = stream_id
        """No other link of any replica has it: with a run id it names a call for ever."""
        self.last_run_id = 0  # they strictly increase on a link
        self.unkeyed = 0
        """Its calls without ordering key that are here, running or not, and its reservations that wait."""
        self.in_slots = 0
        """Those of these calls that are in slots. Their permits were taken before, by whomever."""
        self.keyed = 0  # its calls with an ordering key that are here, running or not
        self.handed = 0
        """Those of them that are in a turn or a batch. Some may have been answered: it ends as a whole."""
        self.overrun = False
        """It went past its keyed window: nothing keyed is taken until all that is here has been answered."""
        self.waiting: dict[int, ReplicaRun] = {}
        """Its runs with calls that can still be taken back, by `key`."""
        self.uploads: Any = None
        """What puts together payloads of its calls that come in chunks. The shell's, opaque here."""
        self.requests: Any = None
        """Requests of its calls that take several. The shell's, opaque here."""
        self.max_result_bytes = max_result_bytes
        """The stream carries no larger results."""
        self.fresh_until = fresh_until
        """Monotonic seconds, exclusive. Infinite where the router echoes nothing."""
        self.parked: list[ReplicaRun] = []
        """Its runs that would have started when it was no longer fresh, in order. They are in no queue and no lane."""
        self.splits = 0  # runs of it that were split off others
        self.moved: list[ReplicaRun] = []  # their sessions went on elsewhere: it takes back nothing of them
        self.has_joined = False  # it has asked for outcomes of calls that ran already
        self.sent: dict[int, RunRecord | RunTaker] = {}
        """What of sessions is owed or kept under its run ids, by the first of them."""
        self.freed_at: float | None = None
        """When a call of it ended and so made room that others wait for, until it sends the next one."""
        self.untold_until = -inf
        """Not before this moment it is told again that there is room."""


class ReplicaRun:
    """Consecutive calls of one router that share their options."""

    __slots__ = (
        "arrival",
        "arrived",
        "awaits",
        "begin",
        "deadline",
        "end",
        "endpoint",
        "failed_at",
        "first",
        "hi",
        "identity",
        "is_split",
        "key",
        "lane",
        "lease_s",
        "left",
        "link",
        "lo",
        "max_result_bytes",
        "open",
        "options",
        "ordering_key",
        "origin",
        "owner_epoch",
        "partition",
        "payloads",
        "record",
        "slot",
        "started_at",
        "traced",
        "weighed",
        "withdrawn",
    )

    def __init__(
        self,
        link: RouterPeer,
        first: int,
        payloads: Sequence[bytes],
        options: ReplicaCallOptions,
        endpoint: str,
        arrived: float,
        deadline: float = inf,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """`begin` and `end`: which of the payloads are its own, where not all are."""
        self.link = link
        self.max_result_bytes = link.max_result_bytes
        """A larger result fails its call."""
        self.first = first
        """Run id of `payloads[0]`; the others follow one by one."""
        self.payloads = payloads
        self.options = options
        self.ordering_key = options.ordering_key
        """That of its batch, or its own where the batch has a column of them. Empty means none."""
        self.endpoint = endpoint
        self.arrived = arrived  # monotonic seconds
        self.arrival: Arrival | None = None
        """What its router says of where the calls come from, if anything."""
        self.traced: Any = None
        """Where its one call is sampled: the parent of its spans, then what the shell has made of that."""
        self.deadline = deadline
        """Monotonic seconds, exclusive: from then on no call of the run is started."""
        self.partition = self.owner_epoch = 0
        """Both are read only where there is an ordering key."""
        self.begin = self.lo = begin
        self.end = self.hi = len(payloads) if end is None else end
        self.open = self.left = self.end - begin
        """Calls that can still be taken back, and calls that have neither ended nor been answered."""
        self.key = first + begin
        """Where it is in its link's `waiting`; unique there. Negative where it was split off another run."""
        self.awaits = False
        """Its payload is under way; it is a single call then, and does not start."""
        self.is_split = False  # calls of it may be in a run that was split off
        self.lane: ReplicaLane | None = None
        self.record: RunRecord | None = None
        """What is kept of its calls, where they belong to a session."""
        self.origin: RerunOrigin | None = None  # of another attempt at calls without a session
        self.lease_s, self.identity = 0.0, ""
        """Of a reservation: the lease, and who asks. It is one call, which starts by becoming a slot. 0: it is none."""
        self.slot: ReservedSlot | None = None  # that it runs in: it is one call, and holds that permit while it is here
        self.started_at = 0.0  # mean of when its calls that run were started, unkeyed ones; monotonic seconds
        self.weighed: dict[int, Weighed] | None = None
        """What is known of its calls' weights, by index; shared with runs that were split off."""
        self.failed_at: float = inf
        """Index of the first call that failed where it is executed, set before the next starts. Only where it stops."""
        self.withdrawn: set[int] | None = None
        """Indices of calls that were handed to an executor and must not start any more, if it has not started them."""

    def cut_out(self, lo: int, hi: int) -> ReplicaRun:
        """A run of its own, with its own record, for some of the calls, before anything has happened to them."""
        part = ReplicaRun(
            self.link, self.first + lo, self.payloads[lo:hi], self.options, self.endpoint, self.arrived, self.deadline
        )
        part.ordering_key, part.partition, part.owner_epoch = self.ordering_key, self.partition, self.owner_epoch
        part.awaits, part.max_result_bytes, part.arrival = self.awaits, self.max_result_bytes, self.arrival
        if self.origin is not None:
            part.origin = self.origin._replace(run_ids=self.origin.run_ids[lo:hi])
        if self.record is not None:
            part.record = self.record.cut_out(lo, hi)
        return part

    def split(self, lo: int, hi: int) -> ReplicaRun:
        """A run of its own for the calls from `lo` up to `hi`; they keep their indices. The caller adjusts this one."""
        self.open -= hi - lo
        return self.reopen(lo, hi)

    def reopen(self, lo: int, hi: int) -> ReplicaRun:
        """The same for calls that could no longer be taken back, and that have come back unstarted."""
        link = self.link
        part = ReplicaRun(
            *(link, self.first, self.payloads, self.options, self.endpoint, self.arrived, self.deadline),
            begin=lo,
            end=hi,
        )
        part.ordering_key, part.partition, part.owner_epoch = self.ordering_key, self.partition, self.owner_epoch
        part.lane, part.slot, part.weighed = self.lane, self.slot, self.weighed
        part.origin, part.max_result_bytes, part.arrival = self.origin, self.max_result_bytes, self.arrival
        part.traced = self.traced
        link.splits += 1
        part.key = -link.splits
        self.is_split = part.is_split = True
        link.waiting[part.key] = part
        if self.record is not None:
            part.record = self.record
            part.record.runs.append(part)
        self.ended(hi - lo)
        return part

    def close(self, count: int) -> None:
        """So many of its calls can no longer be taken back."""
        self.open -= count
        if not self.open:
            del self.link.waiting[self.key]

    def start(self, count: int, now: float) -> None:
        """This number of its calls start, each with a permit of its own; `lo` is behind them."""
        running = self.left - (self.hi - self.lo)  # with them
        self.started_at = now if running <= count else self.started_at + (now - self.started_at) * count / running

    def ended(self, count: int) -> None:
        """This number of its calls have ended, were answered or were split off. Contexts left behind keep the run."""
        self.left -= count
        if not self.left:
            self.payloads, self.weighed = (), None

    def is_of_batch(self, run: ReplicaRun) -> bool:
        """Whether an index means the same call in both."""
        return self.first == run.first and self.link is run.link

    def is_part_of(self, run: ReplicaRun) -> bool:
        """Whether its calls are some of those of a run, which it may be split off."""
        return self.is_of_batch(run) and run.begin <= self.begin and self.end <= run.end

    def withdraw(self, lo: int, hi: int) -> None:
        """The executor must not start these calls, as far as it has not."""
        if self.withdrawn is None:
            self.withdrawn = set()
        self.withdrawn.update(range(lo, hi))


class LaneQueue(Protocol):
    """What holds a lane and counts its first calls. It hears what changes in the lane."""

    def recount(self, lane: ReplicaLane) -> bool:
        """The lane's calls have changed. Returns False where it holds the lane no longer."""

    def extend(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """The run was just put at the end of the lane."""


class ReplicaLane:
    """The queue of one ordering key. Compared by identity."""

    __slots__ = (
        "batcher",
        "is_blocked",
        "is_idle",
        "key",
        "offered",
        "offered_runs",
        "offered_weight",
        "partition",
        "runs",
        "turn",
    )

    def __init__(self, key: tuple[str, str], partition: int) -> None:
        self.key = key
        """Endpoint and ordering key."""
        self.partition = partition
        self.runs: deque[ReplicaRun] = deque()
        """Runs with waiting calls, in order. Some may have been emptied by a cancel."""
        self.is_idle = True
        """Neither in the ready queue nor with a permit."""
        self.is_blocked = False
        """Likewise, with calls: the payload of the first one is under way."""
        self.batcher: LaneQueue | None = None
        """What gathers calls for a batch, where its first ones are offered to that."""
        self.offered = 0
        """Calls that the batcher counts as its own."""
        self.offered_runs = 0
        """Runs at the head that these calls belong to."""
        self.offered_weight = 0.0
        """What they weigh, where the batcher weighs."""
        self.turn: StartTurn | None = None
        """The turn that it has."""

    def head(self) -> ReplicaRun | None:
        """The first run with waiting calls."""
        runs = self.runs
        while runs:
            run = runs[0]
            if run.lo < run.hi:
                return run
            runs.popleft()
        return None


class StartTurn:
    """Execute the calls from `lo` up to `hi` of the run one after another, while time lasts and the link is fresh."""

    __slots__ = ("hi", "lane", "lo", "next", "over", "run", "started_at", "stop")

    def __init__(self, lane: ReplicaLane, run: ReplicaRun, lo: int, hi: int, now: float) -> None:
        self.lane = lane
        self.run = run
        self.lo = lo
        self.hi = hi
        self.next = lo
        """Claims move it: the first call that has not started."""
        self.over = inf
        """From then on only a call that has started goes on; monotonic seconds. Set by the first claim."""
        self.stop = hi
        """Calls from here on must not start any more."""
        self.started_at = now
        """Monotonic seconds."""
