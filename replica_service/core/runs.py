"""Runs of calls, the lanes that they wait in, the turns of lanes, and the routers that sent them.

Purpose: the values that the scheduler, batches and executors pass around. One object per run, never per call.
Invariants: `begin <= lo <= hi <= end <= len(payloads)`. Calls before `lo` have been handed to an executor or a batch,
or have their outcome; calls from `lo` to `hi` wait; calls from `hi` on have their outcome, or belong to a run that was
split off. A run is in its link's `waiting` while one of its calls can still be taken back, and keeps its payloads while
a call of it is `left`.
Runs of one batch that differ only in their ordering keys are neighbours: they share `first`, `payloads` and `record`,
so that an index means the same call in all of them.
A link is fresh until `fresh_until`. After that none of its calls starts, and its runs are parked when they would start.
Owner: the scheduler; executors read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Final, TypeAlias

from replica_service.core.call_metadata import Arrival, ReplicaCallOptions, RerunOrigin, ReservedSlot, Weighed
from replica_service.core.call_states import CallState, LaneState
from replica_service.core.session_records import Record, Taker
from slotmesh.calls.request_ids import CallIdentity, ReservationIdentity
from slotmesh.streams.limits import MAX_INLINE_BYTES

FRESH_S = 3.0
"""Seconds for which a router's echo of a stamp lets its runs start, counted from the stamp."""

RunRecord: TypeAlias = Record["ReplicaRun", "RouterPeer"]
RunTaker: TypeAlias = Taker["ReplicaRun", "RouterPeer"]

_ARRIVED: Final = CallState.ARRIVED
_ENDED: Final = CallState.ENDED
_WAITING: Final = CallState.WAITING
_READY: Final = LaneState.READY


class RouterPeer:
    """One router's link, as the core sees it. Compared by identity."""

    def __init__(
        self,
        outbox: Any = None,
        *,
        stream_id: str = "",
        fresh_until: float = inf,
        max_result_bytes: int = MAX_INLINE_BYTES,
    ) -> None:
        """`outbox` takes the outcomes. It is the shell's, opaque here."""
        self.outbox = outbox
        self.closed = False
        self.stream_id = stream_id
        """Unique among all links of all replicas: together with a run id it identifies a call for ever."""
        self.last_run_id = 0  # they strictly increase on a link
        self.unkeyed = 0
        """Its present calls without ordering key, running or not, and its waiting reservations."""
        self.in_slots = 0
        """Unkeyed calls that are in slots. Their permits were taken with the slots."""
        self.keyed = 0  # its present calls with an ordering key, running or not
        self.handed = 0
        """Keyed calls in a turn or a batch. Some may already have an outcome: a turn or batch ends as a whole."""
        self.overrun = False
        """It exceeded its keyed window: no keyed call is accepted until all present ones have their outcome."""
        self.waiting: dict[int, ReplicaRun] = {}
        """Its runs with calls that can still be taken back, by `key`."""
        self.uploads: Any = None
        """Assembles payloads of its calls that arrive in chunks. The shell's, opaque here."""
        self.requests: Any = None
        """Requests of its client-streaming calls. The shell's, opaque here."""
        self.max_result_bytes = max_result_bytes
        """The largest result that the link carries."""
        self.fresh_until = fresh_until
        """Monotonic seconds, exclusive. Infinite: always."""
        self.parked: list[ReplicaRun] = []
        """Its runs that would have started when it was no longer fresh, in order. They are in no queue and no lane."""
        self.splits = 0  # runs of it that were split off others
        self.moved: list[ReplicaRun] = []  # their sessions moved to another router: this one can cancel none of them
        self.has_joined = False  # it has requested outcomes of calls that ran already
        self.sent: dict[int, RunRecord | RunTaker] = {}
        """Records and takers of sessions under its run ids, by the first run id of each."""
        self.freed_at: float | None = None
        """When a call of it ended and made room that other routers wait for, until it sends the next one."""
        self.silent_until = -inf
        """Not before this time it is notified again of room."""


class ReplicaRun:
    """Consecutive calls of one router that share their options."""

    __slots__ = (
        "arrival",
        "arrived",
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
        "request",
        "reservation",
        "slot",
        "started_at",
        "state",
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
        """`begin` and `end`: the range of the payloads that belongs to this run, by default all."""
        self.link = link
        self.max_result_bytes = link.max_result_bytes
        """A larger result fails its call."""
        self.first = first
        """Run id of `payloads[0]`; the others follow one by one."""
        self.payloads = payloads
        self.options = options
        self.ordering_key = options.ordering_key
        """The key of its batch, or its own if the batch has a column of keys. Empty means none."""
        self.endpoint = endpoint
        self.arrived = arrived  # monotonic seconds
        self.arrival: Arrival | None = None
        """What its router states about the origin of the calls, if anything."""
        self.traced: Any = None
        """If its single call is sampled: the parent of its spans, later the shell's object for the spans."""
        self.deadline = deadline
        """Monotonic seconds, exclusive: no call of the run is started later."""
        self.partition = self.owner_epoch = 0
        """Used only if it is keyed."""
        self.begin = self.lo = begin
        self.end = self.hi = len(payloads) if end is None else end
        self.open = self.left = self.end - begin
        """`open`: calls that can still be taken back. `left`: calls that have neither ended nor an outcome."""
        self.key = first + begin
        """Its key in its link's `waiting`. Negative if it was split off another run."""
        self.state = _ARRIVED
        """Changed by `accounting` only; `UPLOADING` from the beginning if the payload is still to arrive."""
        self.is_split = False  # calls of it may be in a run that was split off
        self.lane: ReplicaLane | None = None
        self.record: RunRecord | None = None
        """What a session keeps of its calls; None without a session."""
        self.request: CallIdentity | None = None
        """Of a single call that its caller may repeat."""
        self.origin: RerunOrigin | None = None  # the first attempt at calls without a session
        self.lease_s, self.identity = 0.0, ""
        """Of a reservation: the lease (0: no reservation) and the caller. Its single call starts by becoming a slot."""
        self.reservation: ReservationIdentity | None = None
        """Of a reservation that its caller may repeat."""
        self.slot: ReservedSlot | None = None  # that its single call runs in, with that permit
        self.started_at = 0.0  # mean start time of its running unkeyed calls; monotonic seconds
        self.weighed: dict[int, Weighed] | None = None
        """Known weights of its calls, by index; shared with runs that were split off."""
        self.failed_at: float = inf
        """In a lane that stops: index of the first call that failed, set before the next one starts."""
        self.withdrawn: set[int] | None = None
        """Indices of calls that an executor has, and must not start if it has not yet."""

    def cut_out(self, lo: int, hi: int) -> ReplicaRun:
        """Returns a new run with its own record for some of the calls, before any of them is processed."""
        part = ReplicaRun(
            self.link, self.first + lo, self.payloads[lo:hi], self.options, self.endpoint, self.arrived, self.deadline
        )
        self._share_with(part)
        part.state = self.state
        if self.origin is not None:
            part.origin = self.origin._replace(run_ids=self.origin.run_ids[lo:hi])
        if self.record is not None:
            part.record = self.record.cut_out(lo, hi)
        return part

    @property
    def is_keyed(self) -> bool:
        """Whether it waits in a lane of its partition: of its ordering key, or of its request id if it has no key."""
        return bool(self.ordering_key) or (self.request is not None and not self.request.slot)

    @property
    def lane_key(self) -> LaneKey:
        """The key of its lane. Only if it is keyed."""
        if self.ordering_key or self.request is None:
            return self.endpoint, self.ordering_key
        return self.endpoint, self.request.caller, self.request.request_id

    @property
    def ends_with_caller(self) -> bool:
        """Whether its running calls are cancelled when their caller cancels them."""
        return self.request is None or self.options.streaming

    def split(self, lo: int, hi: int) -> ReplicaRun:
        """Returns a new run for the calls from `lo` up to `hi`, with the same indices. The caller adjusts this run."""
        self.open -= hi - lo
        return self.reopen(lo, hi)

    def reopen(self, lo: int, hi: int) -> ReplicaRun:
        """Like `split`, for calls that could no longer be taken back and were returned unstarted."""
        link = self.link
        part = ReplicaRun(
            *(link, self.first, self.payloads, self.options, self.endpoint, self.arrived, self.deadline),
            begin=lo,
            end=hi,
        )
        self._share_with(part)
        part.lane, part.slot, part.weighed = self.lane, self.slot, self.weighed
        part.state, part.traced, part.origin = _WAITING, self.traced, self.origin
        link.splits += 1
        part.key = -link.splits
        self.is_split = part.is_split = True
        link.waiting[part.key] = part
        if self.record is not None:
            part.record = self.record
            part.record.runs.append(part)
        self.ended(hi - lo)
        return part

    def _share_with(self, part: ReplicaRun) -> None:
        """Gives the part what all calls of the run have in common, beyond the arguments of the constructor."""
        part.ordering_key, part.partition, part.owner_epoch = self.ordering_key, self.partition, self.owner_epoch
        part.max_result_bytes, part.arrival, part.request = self.max_result_bytes, self.arrival, self.request

    def close(self, count: int) -> None:
        """Notes that `count` of its calls can no longer be taken back."""
        self.open -= count
        if not self.open:
            del self.link.waiting[self.key]

    def start(self, count: int, now: float) -> None:
        """Notes that `count` of its calls start, each with its own permit. `lo` is already after them."""
        running = self.left - (self.hi - self.lo)  # with them
        self.started_at = now if running <= count else self.started_at + (now - self.started_at) * count / running

    def ended(self, count: int) -> None:
        """Notes that `count` of its calls have ended, have an outcome or were split off.

        Payloads are dropped with the last one, because contexts that calls leave behind may keep the run.
        """
        self.left -= count
        if not self.left:
            self.state = _ENDED
            self.payloads, self.weighed = (), None

    def is_of_batch(self, run: ReplicaRun) -> bool:
        """Whether an index means the same call in both."""
        return self.first == run.first and self.link is run.link

    def is_part_of(self, run: ReplicaRun) -> bool:
        """Whether all its calls are in `run`'s range, as after a split."""
        return self.is_of_batch(run) and run.begin <= self.begin and self.end <= run.end

    def withdraw(self, lo: int, hi: int) -> None:
        """Forbids the executor to start those of these calls that it has not started."""
        if self.withdrawn is None:
            self.withdrawn = set()
        self.withdrawn.update(range(lo, hi))


LaneKey: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""What the calls of a lane have in common: endpoint and ordering key; or endpoint, caller and request id."""


class ReplicaLane:
    """The queue of one ordering key, or of one request id. Compared by identity."""

    __slots__ = (
        "batch_method",
        "key",
        "offered",
        "offered_runs",
        "offered_weight",
        "partition",
        "runs",
        "state",
        "turn",
    )

    def __init__(self, key: LaneKey, partition: int) -> None:
        self.key = key
        self.partition = partition
        self.runs: deque[ReplicaRun] = deque()
        """Runs with waiting calls, in order. Some may have been emptied by a cancel."""
        self.state = _READY
        """Changed by `lanes` only."""
        self.batch_method: str | None = None
        """The batch method whose batcher the lane's first calls are offered to, if any."""
        self.offered = 0
        """Calls that the batcher counts as its own."""
        self.offered_runs = 0
        """Runs at the head that the offered calls belong to."""
        self.offered_weight = 0.0
        """Weight of the offered calls, if the batcher weighs calls."""
        self.turn: StartTurn | None = None
        """Its current turn."""

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
    """Execute the calls from `lo` up to `hi` of the run in sequence, until `over`, while the link is fresh."""

    __slots__ = ("hi", "lane", "lo", "next", "over", "run", "started_at", "stop")

    def __init__(self, lane: ReplicaLane, run: ReplicaRun, lo: int, hi: int, now: float) -> None:
        self.lane = lane
        self.run = run
        self.lo = lo
        self.hi = hi
        self.next = lo
        """The first call that has not started; advanced by claims."""
        self.over = inf
        """No call starts later; monotonic seconds. Set by the first claim."""
        self.stop = hi
        """Calls from this index on must not start."""
        self.started_at = now
        """Monotonic seconds."""
