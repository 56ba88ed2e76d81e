"""Outcomes that are kept until their clients have acknowledged them, or the bounds are exceeded.

Purpose: keeps, evicts and drops the outcomes of records, so that bytes and records are counted in one place; and
remembers what remains of dropped sessions.
Invariants: `bytes` is the sum of the records on the two shelves. The oldest delivered outcomes are evicted first, and
their session remembers them as evicted. Cost is per run, never per call.
Owner: the session table.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from replica_service.core.runs import RunRecord
from replica_service.core.session_records import KeptOutcome, Mark
from slotmesh.calls.id_ranges import merged
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES

MAX_KEPT_BYTES = 2 * MAX_PAYLOAD_BYTES
MAX_KEPT_RUNS = 65_536
MAX_EVICTED_RANGES = 4_096
"""Ranges of evicted calls that a session remembers; of older ones it remembers only the greatest id."""
CALL_BYTES = 64
"""Memory of a kept outcome besides its payload."""


class KeptOutcomes:
    """The kept outcomes of all sessions."""

    __slots__ = ("_delivered", "_max_bytes", "_max_runs", "_retained", "bytes")

    def __init__(self, max_bytes: int, max_runs: int) -> None:
        self.bytes = 0
        """Memory of the kept outcomes, bytes."""
        self._max_bytes = max_bytes
        self._max_runs = max_runs
        self._delivered: OrderedDict[RunRecord, None] = OrderedDict()
        """Records with kept outcomes, oldest first."""
        self._retained: OrderedDict[RunRecord, None] = OrderedDict()
        """Records with outcomes that were not delivered, because there was no link."""

    def __len__(self) -> int:
        """The number of records with kept outcomes."""
        return len(self._delivered) + len(self._retained)

    def taken(self, record: RunRecord) -> None:
        """Notes that a link takes the outcomes of the record."""
        if record.shelf is self._retained:
            del self._retained[record]
            self._delivered[record] = None
            record.shelf = self._delivered

    def keep(self, record: RunRecord, lo: int, hi: int, outcome: KeptOutcome, size: int) -> None:
        """Keeps the outcome of calls that were pending. `size`: bytes of its payloads."""
        record.pending -= hi - lo
        if not record.pending:
            record.runs = []
        record.pieces.append((lo, hi, outcome))
        size += CALL_BYTES * (hi - lo)
        record.size += size
        self.bytes += size
        shelf = self._delivered if record.link is not None or record.takers else self._retained
        if record.shelf is not shelf and record.shelf is not self._retained:
            if record.shelf is not None:
                del record.shelf[record]
            record.shelf = shelf
            shelf[record] = None
        while self.bytes > self._max_bytes or len(self._delivered) + len(self._retained) > self._max_runs:
            self._evict(next(iter(self._delivered or self._retained)))

    def _evict(self, record: RunRecord) -> None:
        session = record.session
        if session is None:
            raise RuntimeError("a record on a shelf has a session")
        evicted = session.evicted.setdefault(record.epoch, [])
        for lo, hi, known in list(record.between(0, record.count)):
            if known is not None and known is not Mark.GONE:
                evicted += record.ids_of(lo, hi)
        if len(evicted) > MAX_EVICTED_RANGES:
            joined = merged(evicted)
            if len(joined) > MAX_EVICTED_RANGES:
                half = len(joined) // 2
                session.lost_through = max(session.lost_through, joined[half - 1][1])
                del joined[:half]
            session.evicted[record.epoch] = joined
        self.forget(record, 0, record.count)

    def forget(self, record: RunRecord, lo: int, hi: int, *, pending_too: bool = False) -> None:
        """Drops the outcomes of these calls, which will not be requested."""
        if lo <= 0 and record.count <= hi and not record.pending:
            self.drop(record)
            return
        for begin, end, known in list(record.between(lo, hi)):
            if known is Mark.GONE or (known is None and not pending_too):
                continue
            if known is None:
                record.pending -= end - begin
                record.has_gaps = True
            else:
                size = bytes_of(known) + CALL_BYTES * (end - begin)
                record.size -= size
                self.bytes -= size
            record.put(begin, end, Mark.GONE)
            record.left -= end - begin
        if not record.left:
            self.drop(record)
        elif not record.size and record.shelf is not None:
            del record.shelf[record]
            record.shelf = None

    def drop(self, record: RunRecord) -> None:
        """Drops the record."""
        if record.session is not None:
            del record.session.records[record]
            record.session = None
        if record.shelf is not None:
            del record.shelf[record]
            record.shelf = None
        self.bytes -= record.size
        record.size = 0
        record.runs = []
        record.pieces = []
        disconnect(record)


def disconnect(record: RunRecord) -> None:
    """Ends the delivery of the record's outcomes."""
    if record.link is not None:
        record.link.sent.pop(record.first, None)
        record.link = None
    if record.takers:
        for taker in record.takers:
            taker.link.sent.pop(taker.first, None)
        record.takers = ()


def bytes_of(outcome: KeptOutcome) -> int:
    """Returns the number of bytes of the outcome's payloads."""
    return sum(map(len, outcome)) if isinstance(outcome, Sequence) else 0


MAX_FORGOTTEN = 65_536
"""Forgotten sessions that a replica remembers."""


class Remnant(NamedTuple):
    """One forgotten session."""

    epoch: int
    """The newest epoch received."""
    lost_through: int
    """The greatest id of a started call whose outcome was lost with the session; 0 if there is none."""


class ForgottenSessions:
    """What remains of dropped sessions, so that older epochs stay refused and lost calls are reported as unknown.

    A session without anything to refuse or report is not kept. The oldest are dropped first.
    """

    __slots__ = ("_max", "_remnants")

    def __init__(self, most: int = MAX_FORGOTTEN) -> None:
        self._max = most
        self._remnants: OrderedDict[str, Remnant] = OrderedDict()
        """By session id, oldest first."""

    def __len__(self) -> int:
        return len(self._remnants)

    def add(self, session_id: str, remnant: Remnant) -> None:
        """Adds a session that is dropped."""
        if remnant.epoch <= 1 and not remnant.lost_through:
            return
        if len(self._remnants) >= self._max:
            self._remnants.popitem(last=False)
        self._remnants[session_id] = remnant

    def find(self, session_id: str) -> Remnant | None:
        """Returns the remnant of a dropped session; None if it is not remembered."""
        return self._remnants.get(session_id)

    def remove(self, session_id: str) -> None:
        """Removes a session that exists again."""
        self._remnants.pop(session_id, None)
