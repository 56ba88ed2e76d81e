"""Calls that were sent and have no outcome yet, by their ids on the wire. Pure.

Purpose: correlates answers with calls, by slices: the cost is per run of consecutive ids, not per call. Returns what a
session has to send again.
Invariants: ids strictly increase over the life of an endpoint's client. Each call is settled at most once; an id that
is unknown or settled already is counted as stray and changes nothing. `calls` and `nbytes` count the unanswered calls.
Owner: the endpoint's `Connection`; one `RouterLink` after the other uses it, as calls outlive a broken stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from slotmesh.calls.id_ranges import Ledger, Range, append, run_length
from slotmesh.client.calls.queues import TenantWindow
from slotmesh.client.calls.sent_parts import SentPart

if TYPE_CHECKING:
    from slotmesh.v1 import call_pb2, router_service_pb2

Settled = tuple[SentPart, int, int, int]
"""Consecutive calls that have their outcome now: their part, the place of the first in it, its index in the list of
ids, and their number."""

SettledPlaces = tuple[SentPart, list[int], int]
"""Calls of a part that have their outcome now: their places in it, and where they start in the list of ids."""

_FREED: Final = [b""]
"""Replaces the payload of a call that is not sent again."""


class PendingCalls:
    """The parts that were sent, until all of their calls are settled."""

    __slots__ = ("_by_tenant", "_sent", "calls", "nbytes", "strays")

    def __init__(self, next_id: int = 1) -> None:
        self._sent: Ledger[SentPart] = Ledger(next_id)
        self.calls = 0
        """Unanswered calls."""
        self.nbytes = 0
        """Their payload bytes."""
        self._by_tenant: dict[str, list[int]] = {}
        """Calls and bytes of each tenant that has any; of calls without a tenant nothing."""
        self.strays = 0
        """Answers for ids without an unanswered call."""

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of the unanswered calls: not all are cancelled."""
        return any(part.has_wanted for part in self._sent.values())

    @property
    def next_id(self) -> int:
        """The id of the next call to be sent."""
        return self._sent.next_id

    def add(self, part: SentPart, now: float = 0.0, roster: router_service_pb2.RosterVersion | None = None) -> None:
        """Gives the calls of a part their ids, as they leave now; `roster` is the newest acknowledged version."""
        part.sent_at = now
        part.roster = roster
        self._sent.number(part)
        self.calls += part.count
        self.nbytes += part.nbytes
        if part.spec.tenant:
            self._count_tenant(part.spec.tenant, part.count, part.nbytes)

    def by_tenant(self) -> dict[str, TenantWindow]:
        """What each tenant has unanswered. Calls without a tenant count as one more tenant."""
        held = {tenant: TenantWindow(calls, nbytes) for tenant, (calls, nbytes) in self._by_tenant.items()}
        calls, nbytes = (sum(each[at] for each in held.values()) for at in (0, 1))
        held[""] = TenantWindow(self.calls - calls, self.nbytes - nbytes)
        return held

    def settle(self, ids: Sequence[int]) -> Iterator[Settled]:
        """Finds the calls with these ids, which are unanswered no longer, in slices of neighbours.

        The walk of `Ledger.slices`, written out: a generator within a generator is 8 % of what single calls cost here.
        """
        sent, start, total = self._sent, 0, len(ids)
        while start < total:
            first = ids[start]
            part = sent.get(first) or sent.covering(first)
            if part is None:
                self.strays += 1
                start += 1
                continue
            at = first - part.first
            count = run_length(ids, start, min(total - start, part.count - at))
            if part.answered is None or 1 not in part.answered[at : at + count]:
                self._mark(part, at, count)
                yield part, at, start, count
            else:
                yield from self._settle_singly(part, at, start, count)
            start += count

    def settle_scattered(self, ids: Sequence[int]) -> Iterator[SettledPlaces]:
        """As `settle`, for ids that ascend, with many gaps: a list of places for each part, instead of slices."""
        start, total = 0, len(ids)
        while start < total:
            part = self._sent.covering(ids[start])
            if part is None:
                self.strays += 1
                start += 1
                continue
            first_id = part.first
            stop = bisect_left(ids, first_id + part.count, start)
            places = [call_id - first_id for call_id in ids[start:stop]]
            if self._mark_places(part, places):
                yield part, places, start
            else:
                for _, at, index, count in self.settle(ids[start:stop]):
                    yield part, list(range(at, at + count)), start + index
            start = stop

    def find(self, call_id: int) -> tuple[SentPart, int] | None:
        """The part of a call, and its place there; None if the call is no longer known."""
        part = self._sent.covering(call_id)
        return None if part is None else (part, call_id - part.first)

    def is_unanswered(self, call_id: int) -> bool:
        """Whether the call was sent and has no outcome."""
        part = self._sent.covering(call_id)
        return part is not None and (part.answered is None or not part.answered[call_id - part.first])

    @property
    def first_wire(self) -> call_pb2.CallOptions | None:
        """The options of the oldest unanswered call; None if there is none."""
        return next(iter(self._sent.values())).wire if self._sent else None

    def parts(self) -> list[SentPart]:
        """All that have unanswered calls, in the order of their ids."""
        return list(self._sent.values())

    def unanswered(self) -> list[Range]:
        """Ranges of the ids of unanswered calls, both ends included, ascending."""
        ranges: list[Range] = []
        for first_id, part in self._sent.items():
            for at, count in part.open_spans():
                append(ranges, first_id + at, first_id + at + count - 1)
        return ranges

    def oversize(self, limit: int) -> tuple[list[int], list[int]]:
        """Unanswered calls with larger payloads than that: their ids, ascending, and the sizes."""
        found = [
            (first_id + at, len(part.payloads[at]))
            for first_id, part in self._sent.items()
            if part.nbytes > limit
            for start, count in part.open_spans()
            for at in range(start, start + count)
            if len(part.payloads[at]) > limit
        ]
        return [call_id for call_id, _ in found], [size for _, size in found]

    def ids_within(self, first: int, last: int) -> list[int]:
        """The ids of a range, both ends included, as far as their parts are here. Costs what is here, not the range."""
        ids: list[int] = []
        for part in self._sent.within(first, last):
            ids.extend(range(max(first, part.first), min(last, part.first + part.count - 1) + 1))
        return ids

    def take_unwanted(self, before: int) -> list[Range]:
        """Ranges of ids, both ends included, below `before`: cancelled calls. Each is returned once.

        They stay unanswered until their outcome arrives.
        """
        ranges: list[Range] = []
        for first_id, part in self._sent.items():
            if first_id >= before:
                break
            for at in part.take_unwanted():
                append(ranges, first_id + at, first_id + at)
        return ranges

    def take_all(self) -> list[Range]:
        """As `take_unwanted`, but for all unanswered calls, cancelled or not."""
        ranges: list[Range] = []
        for first_id, part in self._sent.items():
            for at in part.untaken():
                append(ranges, first_id + at, first_id + at)
        return ranges

    def drain(self) -> Iterator[Settled]:
        """All calls, in the order sent, which are unanswered no longer. There is no list of ids here."""
        for part in self.parts():
            for at, count in list(part.open_spans()):
                self._mark(part, at, count)
                yield part, at, 0, count

    def drain_unwanted(self) -> Iterator[Settled]:
        """All cancelled calls, as `drain`, whether their cancel was sent or not: a new stream does not get them."""
        for part in self.parts():
            for at in part.unwanted():
                self._mark(part, at, 1)
                yield part, at, 0, 1

    def drain_streaming(self) -> Iterator[Settled]:
        """All calls whose values arrive one by one, as `drain`: such calls do not outlive their connection."""
        for part in self.parts():
            if part.spec.streaming:
                for at, count in list(part.open_spans()):
                    self._mark(part, at, count)
                    yield part, at, 0, count

    def hand_over(self) -> PendingCalls:
        """All but the calls whose values arrive one by one, which stay here: those cannot move to another stream."""
        successor = PendingCalls(self.next_id)
        for part in self.parts():
            if not part.spec.streaming:
                successor._take(part)
                self._count(part, -part.left, -part.nbytes)
                self._sent.drop(part)
        return successor

    def _take(self, part: SentPart) -> None:
        """Adds a part that was sent, behind all others."""
        self._sent.take_over(part)
        self._count(part, part.left, part.nbytes)

    def _count(self, part: SentPart, calls: int, nbytes: int) -> None:
        """Counts this number of calls and bytes of the part as unanswered; negative: as answered."""
        self.calls += calls
        self.nbytes += nbytes
        if part.spec.tenant:
            self._count_tenant(part.spec.tenant, calls, nbytes)

    def _count_tenant(self, tenant: str, calls: int, nbytes: int) -> None:
        held = self._by_tenant.get(tenant)
        if held is None:
            held = self._by_tenant[tenant] = [0, 0]
        held[0] += calls
        held[1] += nbytes
        if not held[0]:
            del self._by_tenant[tenant]

    def _mark(self, part: SentPart, at: int, count: int) -> None:
        part.left -= count
        if not part.left:
            self.calls -= count
            self.nbytes -= part.nbytes
            if part.spec.tenant:
                self._count_tenant(part.spec.tenant, -count, -part.nbytes)
            part.nbytes = 0
            self._sent.drop(part)
            return
        if part.answered is None:
            part.answered = bytearray(part.count)
        part.answered[at : at + count] = b"\1" * count
        payloads = part.payloads
        nbytes = sum(map(len, payloads[at : at + count]))
        payloads[at : at + count] = _FREED * count
        part.nbytes -= nbytes
        self._count(part, -count, -nbytes)

    def _mark_places(self, part: SentPart, places: list[int]) -> bool:
        """Marks calls of a part, unless one of them is answered already, or occurs twice."""
        answered, payloads, nbytes = part.answered, part.payloads, 0
        if answered is None:
            answered = bytearray(part.count)
        elif any(map(answered.__getitem__, places)):
            return False
        if len(set(places)) < len(places):
            return False
        for at in places:
            answered[at] = 1
            nbytes += len(payloads[at])
            payloads[at] = b""
        part.answered = answered
        part.left -= len(places)
        part.nbytes -= nbytes
        self._count(part, -len(places), -nbytes)
        if not part.left:
            self._sent.drop(part)
        return True

    def _settle_singly(self, part: SentPart, at: int, start: int, count: int) -> Iterator[Settled]:
        """Some of these were answered before."""
        for index in range(count):
            if part.left and part.answered is not None and not part.answered[at + index]:
                self._mark(part, at + index, 1)
                yield part, at + index, start + index, 1
            else:
                self.strays += 1
