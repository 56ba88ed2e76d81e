"""Counts the values that one caller has taken; handlers that yield may continue by that number.

Purpose: a replica lets a handler run a credit ahead of the taken values (`core/callers.py`). The values of one caller
are counted here: they are taken when written, for a client that does not acknowledge them; otherwise when it
acknowledges them. A caller with many such calls has smaller credits, which cover the way to the router: its values are
taken when they leave the router, while the client is not far behind.
Invariants: however much a caller acknowledges, no more is taken of a call than was written to it; so at most the
credits of its calls wait here. A handler is never further ahead of a client that acknowledges values than a single call
may be. A call that has ended leaves no state.
Owner: the caller's stream, or its unary call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sized
from typing import Final

from router_service.core.callers import ALONE, CREDITS, HALF, CallCredit
from router_service.core.commands import DeliverValues
from router_service.core.replicas.replica import RoutedReplica
from router_service.shell.dispatcher import Dispatcher

TAKE_VALUES: Final = ALONE.values // 4
TAKE_BYTES: Final = ALONE.bytes // 4
"""The replica is informed of values taken here when either is reached, or half of a smaller credit: frames are few, and
no handler waits for values that were written long ago."""


class Taking:
    """The calls of one caller whose values have begun to leave."""

    def __init__(self, dispatcher: Dispatcher, levels: Mapping[int, int], *, by_caller: bool = False) -> None:
        """`levels`: of the credits of calls, by id; 0 for others. `by_caller`: the caller acknowledges values."""
        self._dispatcher = dispatcher
        self._levels = levels
        self._by_caller = by_caller
        self.calls: dict[int, _Call] = {}
        """Empty where there are none: all other calls cost nothing here."""
        self.leaving: list[DeliverValues] = []
        """Values that are being written. To be read: `written` has something to do."""

    def leave(self, values: DeliverValues) -> None:
        """These values are being written."""
        by_caller, ids = self._by_caller, values.ids
        if not by_caller:
            self.leaving.append(values)
        at, end = 0, len(ids)
        while at < end:
            call_id, begin = ids[at], at
            while at < end and ids[at] == call_id:
                at += 1
            call = self.calls.get(call_id)
            if call is None:
                call = self.calls[call_id] = self._begin(values, call_id, values.run_ids[begin])
            if not by_caller:
                continue
            # Counted before the write has ended: the caller may acknowledge them before this side knows that.
            call.values += at - begin
            if call.lead is not None and call.lead.left(values.payloads[begin:at]):
                self._report(call, call.lead.take_due())

    def written(self) -> None:
        """All that was being written has been."""
        for values in self.leaving:
            for call_id, payload in zip(values.ids, values.payloads, strict=True):
                if (call := self.calls.get(call_id)) is None:
                    continue
                call.values += 1
                call.size += len(payload)
                if call.values >= call.take_at.values or call.size >= call.take_at.bytes:
                    self._report(call, call.values)
                    call.values = call.size = 0
        self.leaving.clear()

    def take(self, ids: Iterable[int], counts: Iterable[int]) -> None:
        """The caller has taken the respective number of values of each of these calls."""
        if not self._by_caller:
            return
        for call_id, count in zip(ids, counts, strict=False):
            call = self.calls.get(call_id)
            if call is None or (count := min(count, call.values)) <= 0:
                continue
            call.values -= count
            if call.lead is None:
                self._report(call, count)
            elif call.lead.taken(count):
                self._report(call, call.lead.take_due())

    def take_all(self) -> None:
        """The caller has half-closed: from now on values are taken when they were written."""
        if self._by_caller:
            self._by_caller = False
            for call in self.calls.values():
                if count := call.values if call.lead is None else call.lead.rest:
                    self._report(call, count)
                call.values, call.lead = 0, None

    def ended(self, ids: Iterable[int]) -> None:
        """These calls have their outcome."""
        for call_id in ids:
            self.calls.pop(call_id, None)

    def _begin(self, values: DeliverValues, call_id: int, run_id: int) -> _Call:
        level = self._levels.get(call_id, 0)
        credit = CREDITS[level]
        take_at = CallCredit(min(TAKE_VALUES, (credit.values + 1) // 2), min(TAKE_BYTES, (credit.bytes + 1) // 2))
        lead = _Lead(take_at) if level and self._by_caller else None
        return _Call(values.replica, values.links, run_id, take_at, lead)

    def _report(self, call: _Call, count: int) -> None:
        self._dispatcher.links.take(call.replica, call.links, call.run_id, count)


class _Call:
    """Where the values of one call come from, and what was written of them and not taken."""

    __slots__ = ("lead", "links", "replica", "run_id", "size", "take_at", "values")

    def __init__(
        self, replica: RoutedReplica, links: int, run_id: int, take_at: CallCredit, lead: _Lead | None
    ) -> None:
        self.replica = replica
        self.links = links
        self.run_id = run_id
        self.take_at = take_at
        """When values are taken for the caller."""
        self.lead = lead
        """Calls whose caller acknowledges values, and whose credit is for the way from the replica to this router."""
        self.values = 0
        self.size = 0
        """Bytes of these values; counted only where they are taken for the caller."""


class _Lead:
    """How far the replica may be ahead of one call's caller: half of what a call alone may be.

    The caller acknowledges at the latest then; so one that takes all that comes never holds up its handler.
    """

    __slots__ = ("_bytes", "_due", "_due_bytes", "_held", "_passed", "_take_at")

    def __init__(self, take_at: CallCredit) -> None:
        self._take_at = take_at
        self._passed: deque[int] = deque()
        """Sizes of values that the caller has not taken, and that are taken all the same."""
        self._bytes = 0
        """Of all of them."""
        self._held: deque[int] = deque()
        """Sizes of those after them, which are not."""
        self._due = self._due_bytes = 0
        """Values, and bytes of them, that were taken and of which the replica is not yet informed."""

    def left(self, values: Iterable[Sized]) -> bool:
        """Values leave. Returns whether the replica should be informed of what was taken."""
        sizes = list(map(len, values))
        size = sum(sizes)
        if self._held or len(self._passed) + len(sizes) > HALF.values or self._bytes + size > HALF.bytes:
            self._held.extend(sizes)
            return self._pass()
        self._passed.extend(sizes)
        self._bytes += size
        self._due += len(sizes)
        self._due_bytes += size
        return self._is_due

    def taken(self, count: int) -> bool:
        """The caller has taken the next values. Returns as `left` does."""
        passed, held = self._passed, self._held
        for _ in range(count):
            if passed:
                self._bytes -= passed.popleft()
            else:
                self._due += 1
                self._due_bytes += held.popleft()
        return self._pass()

    def take_due(self) -> int:
        """Returns how many values the replica is informed of now."""
        due, self._due, self._due_bytes = self._due, 0, 0
        return due

    @property
    def rest(self) -> int:
        """Taken values of which the replica is not yet informed."""
        return self._due + len(self._held)

    def _pass(self) -> bool:
        passed, held = self._passed, self._held
        while held and len(passed) < HALF.values and self._bytes < HALF.bytes:
            size = held.popleft()
            passed.append(size)
            self._bytes += size
            self._due += 1
            self._due_bytes += size
        return self._is_due

    @property
    def _is_due(self) -> bool:
        return self._due >= self._take_at.values or self._due_bytes >= self._take_at.bytes
