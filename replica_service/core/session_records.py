"""What sessions remember: records of their calls, one per run and never one per call, and the history of their lanes.

Records: each call is in exactly one state: pending (it waits or runs), kept (its outcome is kept), or gone (its outcome
was acknowledged or evicted, it never started, or its caller gave it up); `pending` and `left` count them. A record
refers to the runs that its calls wait in and the links that its outcomes go to, but does not use their contents: they
are parameters of its type (`runs.py` has the concrete type).
Lanes: `Stops` remembers failures, in lanes that stop after one; `Progress`, which calls have started, so that none is
executed after a later one of its lane. Lanes are remembered by the hash of their endpoint and key, whatever its
length. `LaneBook` keeps one bound for all sessions of the replica: above it, the session that remembers most lanes
forgets the older half of them.
Owner: the session table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from slotmesh.calls.id_ranges import Range, stretches
from slotmesh.errors import Failure

MAX_LANES = 131_072
"""Lanes that all sessions of a replica remember together, about 150 bytes each."""


LaneMemory: TypeAlias = "Stops | Progress"
"""What one session remembers of its lanes. Compared by identity."""


class LaneBook:
    """How many lanes each session remembers."""

    __slots__ = ("_by_size", "_max_lanes", "lanes")

    def __init__(self, max_lanes: int = MAX_LANES) -> None:
        self.lanes = 0
        """Total of all sessions."""
        self._max_lanes = max_lanes
        self._by_size: list[dict[LaneMemory, None]] = [{} for _ in range((max_lanes + 1).bit_length() + 1)]
        """Parts with lanes, by the bit length of their number of lanes."""

    def added(self, part: LaneMemory) -> None:
        """Counts a lane that the part has added."""
        self.lanes += 1
        self._put(part)
        if self.lanes > self._max_lanes:
            most = next(iter(next(each for each in reversed(self._by_size) if each)))
            self.lanes -= most.forget_half()
            self._put(most)

    def left(self, part: LaneMemory) -> None:
        """Drops the part of a session."""
        self._by_size[part.size_bits].pop(part, None)
        self.lanes -= len(part)

    def _put(self, part: LaneMemory) -> None:
        bits = len(part).bit_length()
        if bits != part.size_bits:
            self._by_size[part.size_bits].pop(part, None)
            self._by_size[bits][part] = None
            part.size_bits = bits


class Stops:
    """The first failed call of each lane and stop generation of one session.

    Only calls after the failed one are stopped, and none of another generation. The newest failures are remembered.
    """

    __slots__ = ("_book", "_failed", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._failed: dict[int, int] = {}
        """Hash of endpoint, ordering key and generation -> id of the first call that failed. The newest last."""
        self.size_bits = 0
        """Used by the book."""

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, endpoint: str, key: str, generation: int, call_id: int) -> None:
        """Notes a failed call."""
        lane = hash((endpoint, key, generation))
        first = self._failed.get(lane)
        self._failed[lane] = call_id if first is None else min(first, call_id)
        if first is None:
            self._book.added(self)

    def is_stopped(self, endpoint: str, key: str, generation: int, call_id: int) -> bool:
        """Whether a call before this one has failed."""
        return self._failed.get(hash((endpoint, key, generation)), call_id) < call_id

    def forget_half(self) -> int:
        """Forgets the older half of the failures; returns their number."""
        count = (len(self._failed) + 1) // 2
        self._failed = dict(islice(self._failed.items(), count, None))
        return count


class Progress:
    """The last call that has started in each lane of one session. Compared by identity.

    A router that loses its link fails the calls in transit and continues with the next ones. A client that changes
    routers before it receives these failures sends the calls again, and no replica has a record of them: they are too
    late. Only started calls count. A call that may be too late in a forgotten lane counts as too late.
    """

    __slots__ = ("_book", "_forgotten", "_last", "_newest", "_resumed_at", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._last: dict[int, int] = {}
        """Hash of a lane, its endpoint and ordering key -> id of the last call that has started."""
        self._newest = 0
        """The highest of these ids so far."""
        self._resumed_at = 0
        """`_newest` when the session's newest connection began: calls up to that id were sent before."""
        self._forgotten = 0
        """The highest id of all forgotten lanes."""
        self.size_bits = 0

    def __len__(self) -> int:
        return len(self._last)

    def started(self, endpoint: str, key: str, call_id: int) -> None:
        """Notes that a call and those before it in its lane have started."""
        lane = hash((endpoint, key))
        last = self._last.get(lane)
        self._last[lane] = call_id if last is None else max(last, call_id)
        self._newest = max(self._newest, call_id)
        if last is None:
            self._book.added(self)

    def resumed(self) -> None:
        """Notes that a newer connection of the session has begun."""
        self._resumed_at = self._newest

    def is_passed(self, endpoint: str, key: str, call_id: int, *, again: bool) -> bool:
        """Whether calls after this one in its lane have started, or may have.

        `again`: the call was sent before on this connection. Calls that are sent for the first time arrive in order.
        """
        last = self._last.get(hash((endpoint, key)))
        if last is not None:
            return call_id < last
        return call_id < self._forgotten and (again or call_id <= self._resumed_at)

    def forget_half(self) -> int:
        """Forgets the older half of the lanes; returns their number."""
        count = (len(self._last) + 1) // 2
        self._forgotten = max(self._forgotten, *islice(self._last.values(), count))
        self._last = dict(islice(self._last.items(), count, None))
        return count


RunT = TypeVar("RunT")
LinkT = TypeVar("LinkT")


class Mark(Enum):
    """The mark in place of an outcome without a payload."""

    DONE = "done"
    """The call has ended, and its caller gave it up."""
    GONE = "gone"


KeptOutcome = Sequence[bytes] | Failure | Mark
"""A result for each call, or the common outcome of all."""
RecordPiece = tuple[int, int, KeptOutcome | None]
"""The calls from the first index up to the second, and their outcome; None: pending."""


class Taker(Generic[RunT, LinkT]):
    """A link that takes the outcomes of a record's calls from `lo` up to `hi`, which were sent on another link."""

    __slots__ = ("attempt", "first", "hi", "link", "lo", "record")

    def __init__(self, record: Record[RunT, LinkT], lo: int, hi: int, link: LinkT, first: int, attempt: int) -> None:
        self.record = record
        self.lo = lo
        self.hi = hi
        self.link = link
        self.first = first
        """Run id of the call at `lo` on this link."""
        self.attempt = attempt
        """At which the link's router asks, on the session's newest connection."""

    def part(self, lo: int, hi: int) -> Taker[RunT, LinkT]:
        """The same link for some of the calls."""
        return Taker(self.record, lo, hi, self.link, self.first + lo - self.lo, self.attempt)


class Record(Generic[RunT, LinkT]):
    """The calls of one run, by the index of their payloads. Compared by identity."""

    __slots__ = (
        "acknowledged",
        "attempt",
        "call_ids",
        "content_type",
        "count",
        "epoch",
        "first",
        "has_gaps",
        "is_fenced",
        "left",
        "link",
        "pending",
        "pieces",
        "recovers",
        "runs",
        "session",
        "session_id",
        "shelf",
        "size",
        "takers",
    )

    def __init__(
        self, session_id: str, epoch: int, call_ids: Sequence[int], count: int, *, attempt: int, recovers: bool
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.call_ids = call_ids
        """The client's ids, strictly increasing; a `range` if they are consecutive."""
        self.attempt = attempt
        self.recovers = recovers
        """Whether the run only requests outcomes of earlier calls."""
        self.count = self.pending = self.left = count
        """Calls in all, those without outcome, and those that are not gone."""
        self.content_type = ""
        self.session: ReplicaSession[RunT, LinkT] | None = None
        """None before the record is admitted, and after it was dropped."""
        self.is_fenced = False
        """Unstarted calls never start: a newer epoch was received, or the router has sent the calls again."""
        self.runs: list[RunT] = []
        """The run, or neighbours, and those that were split off; empty once all calls have ended, as payloads go with
        them."""
        self.link: LinkT | None = None
        """The link that gets the outcomes while it is open and of the newest epoch."""
        self.first = 0
        """Run id of the first call there."""
        self.takers: Sequence[Taker[RunT, LinkT]] = ()
        """Other links that take outcomes. Their ranges never overlap."""
        self.pieces: list[tuple[int, int, KeptOutcome]] = []
        """Ranges that are not pending. They never overlap."""
        self.has_gaps = False
        """Whether calls may be gone that an executor still has."""
        self.acknowledged: list[Range] = []
        """Indices, first and last, of calls that were pending when their client had another outcome of them, as that
        their time was over: what they come to is not kept."""
        self.size = 0
        """Bytes that it keeps."""
        self.shelf: dict[Record[RunT, LinkT], None] | None = None
        """Where the table has it, in the order in which records are evicted."""

    def cut_out(self, lo: int, hi: int) -> Record[RunT, LinkT]:
        """Returns a new record for some of the calls, before any of them is processed."""
        return Record(
            self.session_id,
            self.epoch,
            self.call_ids[lo:hi],
            hi - lo,
            attempt=self.attempt,
            recovers=self.recovers,
        )

    # -- indices and ids -------------------------------------------------------------------------------------------

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yields the first and last id of consecutive calls, and the index of the first."""
        return stretches(self.call_ids)

    def ids_of(self, lo: int, hi: int) -> Iterator[Range]:
        """Yields the ids of the calls from index `lo` up to `hi`."""
        for first, last, index in self.stretches():
            begin, end = max(lo, index), min(hi, index + last - first + 1)
            if begin < end:
                yield first + begin - index, first + end - 1 - index

    # -- what became of them ---------------------------------------------------------------------------------------

    def between(self, lo: int, hi: int) -> Iterator[RecordPiece]:
        """Yields all calls from index `lo` up to `hi`, in order."""
        at = lo
        self.pieces.sort(key=_index_of)
        for begin, end, outcome in list(self.pieces):
            if end <= at:
                continue
            if begin >= hi:
                break
            if begin > at:
                yield at, begin, None
                at = begin
            upto = min(end, hi)
            yield at, upto, _cut(outcome, at - begin, upto - begin)
            at = upto
        if at < hi:
            yield at, hi, None

    def put(self, lo: int, hi: int, outcome: KeptOutcome) -> None:
        """Replaces the outcome of these calls."""
        pieces: list[tuple[int, int, KeptOutcome]] = []
        for begin, end, known in self.pieces:
            if end <= lo or hi <= begin:
                pieces.append((begin, end, known))
                continue
            if begin < lo:
                pieces.append((begin, lo, _cut(known, 0, lo - begin)))
            if hi < end:
                pieces.append((hi, end, _cut(known, hi - begin, end - begin)))
        pieces.append((lo, hi, outcome))
        self.pieces = pieces

    # -- which links get outcomes ----------------------------------------------------------------------------------

    def take_over(self, taker: Taker[RunT, LinkT]) -> list[Taker[RunT, LinkT]]:
        """Makes the taker the only recipient of its calls. Returns the takers that it replaces, entirely or partly."""
        replaced = [each for each in self.takers if each.lo < taker.hi and taker.lo < each.hi]
        takers = [each for each in self.takers if each not in replaced]
        for each in replaced:
            takers += [each.part(lo, hi) for lo, hi in ((each.lo, taker.lo), (taker.hi, each.hi)) if lo < hi]
        self.takers = [*takers, taker]
        return replaced

    def recipients(self, lo: int, hi: int) -> list[tuple[LinkT, int, int, int]]:
        """Returns the links that get the outcomes of these calls: link, run id of the first, first and end index."""
        out: list[tuple[LinkT, int, int, int]] = []
        at = lo
        for taker in sorted(self.takers, key=lambda each: each.lo):
            begin, end = max(at, taker.lo), min(hi, taker.hi)
            if begin >= end:
                continue
            if at < begin and self.link is not None:
                out.append((self.link, self.first + at, at, begin))
            out.append((taker.link, taker.first + begin - taker.lo, begin, end))
            at = end
        if at < hi and self.link is not None:
            out.append((self.link, self.first + at, at, hi))
        return out


class ReplicaSession(Generic[RunT, LinkT]):
    """One session. Compared by identity."""

    __slots__ = ("epoch", "evicted", "index", "lost_through", "progress", "records", "seen_at", "session_id", "stops")

    def __init__(self, session_id: str, epoch: int, now: float, progress: Progress, stops: Stops) -> None:
        self.session_id = session_id
        self.epoch = epoch
        """The newest epoch received."""
        self.records: dict[Record[RunT, LinkT], None] = {}
        self.index: list[tuple[int, int, int, Record[RunT, LinkT]]] | None = None
        """First and last id of consecutive calls that are known, index of the first, record; sorted, and apart from one
        another. None if it has to be made."""
        self.evicted: dict[int, list[Range]] = {}
        """Ids of calls whose outcomes were evicted, by the epoch of their sending."""
        self.lost_through = 0
        """The greatest id of a started call whose outcome was lost; 0 if there is none."""
        self.seen_at = now
        self.progress = progress
        self.stops = stops

    def known(self, first: int, last: int) -> Iterator[tuple[int, int, int, Record[RunT, LinkT]]]:
        """Yields those of these calls that are pending or kept: first and last id, index of the first, record."""
        if self.index is None:
            # Of what is gone another record may know: together the ranges would overlap, and could not be searched.
            self.index = sorted(
                (
                    (begin + lo - index, begin + hi - 1 - index, lo, record)
                    for record in self.records
                    for begin, end, index in record.stretches()
                    for lo, hi, known in record.between(index, index + end + 1 - begin)
                    if known is not Mark.GONE
                ),
                key=lambda each: each[:2],
            )
        index = self.index
        at = bisect_left(index, first, key=lambda each: each[1])
        for begin, end, inner, record in index[at : bisect_right(index, last, key=lambda each: each[0])]:
            if record.session is None:
                continue
            lo, hi = inner + max(first, begin) - begin, inner + min(last, end) + 1 - begin
            for at_lo, at_hi, known in record.between(lo, hi):
                if known is not Mark.GONE:
                    yield begin + at_lo - inner, begin + at_hi - 1 - inner, at_lo, record


def _index_of(piece: tuple[int, int, KeptOutcome]) -> int:
    return piece[0]


def _cut(outcome: KeptOutcome, begin: int, end: int) -> KeptOutcome:
    return outcome if isinstance(outcome, Failure | Mark) else outcome[begin:end]
