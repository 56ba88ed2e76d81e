"""Calls whose payloads are still arriving in chunks.

Purpose: such a call keeps its place among those of its ordering key; all other calls pass it. It begins when its
payload is complete.
Invariants: calls of one caller and ordering key begin in order of arrival. A call that ends earlier, by its deadline or
by cancellation, delays no other call. No state here outlives the caller. The bytes that all callers together have
announced, and those that wait behind them, are bounded, and no caller can take all of the bound; a caller that stops
sending chunks loses its incomplete payloads.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import partial
from math import inf
from typing import Generic, TypeVar

from router_service.core import failures
from router_service.core.commands import Step
from router_service.core.events import ChunkArrived, UploadCompleted, UploadFailed
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.submissions import Submissions
from router_service.core.run_states import RunEvent
from router_service.core.runs import Caller, RouterRun
from slotmesh.calls.fair_shares import FairBound, Over
from slotmesh.calls.payload_block import nbytes_of
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Announced, Payload

ItemT = TypeVar("ItemT", bound=Hashable)


class Held(Generic[ItemT]):
    """Incomplete items of one caller, by identity, and the items behind them.

    Invariants: items of one key are released in the order in which they were added. An item without a key waits only
    for itself. An item that is removed delays no other.
    """

    __slots__ = ("_incomplete", "_lines")

    def __init__(self) -> None:
        self._incomplete: dict[ItemT, str] = {}
        """Incomplete items, with their key; empty for none."""
        self._lines: dict[str, dict[ItemT, None]] = {}
        """The held items of each key, in order; the first one is incomplete."""

    def __bool__(self) -> bool:
        return bool(self._incomplete)

    def __iter__(self) -> Iterator[ItemT]:
        """All that is held."""
        for item, key in self._incomplete.items():
            if not key:
                yield item
        for line in self._lines.values():
            yield from line

    def holds(self, key: str) -> bool:
        """Whether an item of this key would have to wait."""
        return bool(key) and key in self._lines

    def add_incomplete(self, item: ItemT, key: str) -> None:
        """The item waits for its payload. `key` is empty where its order means nothing."""
        self._incomplete[item] = key
        if key:
            self._lines.setdefault(key, {})[item] = None

    def add_behind(self, item: ItemT, key: str) -> bool:
        """Whether the item has to wait behind another one of its key; it is held then."""
        line = self._lines.get(key) if key else None
        if line is None:
            return False
        line[item] = None
        return True

    def complete(self, item: ItemT) -> list[ItemT]:
        """The item has its payload. Returns the items that can proceed, in order; empty if another one is before it."""
        key = self._incomplete.pop(item)
        return self._release(key) if key else [item]

    def remove(self, item: ItemT) -> list[ItemT]:
        """Removes the item. Returns the items behind it that can proceed, in order. Ignores unknown items."""
        key = self._incomplete.pop(item, None)
        if key is None:
            key = next((each for each, line in self._lines.items() if item in line), "")
        if not key:
            return []
        del self._lines[key][item]
        return self._release(key)

    def _release(self, key: str) -> list[ItemT]:
        line = self._lines[key]
        released: list[ItemT] = []
        for item in line:
            if item in self._incomplete:
                break
            released.append(item)
        for item in released:
            del line[item]
        if not line:
            del self._lines[key]
        return released


MAX_UPLOAD_BYTES = 56 * 1024 * 1024
"""Less than the largest payload, which is accepted if no other is under way."""
FLOOR_BYTES = 1024 * 1024
"""A caller with at most this may use a reserve beyond the bound."""
STALL_S = 30.0
"""The uploads of a caller that has sent no chunk for this long fail."""
CROWDED = 0.5
"""While the arrived bytes of incomplete payloads exceed this share of the bound, callers must send a chunk every
`CROWDED_STALL_S`."""
CROWDED_STALL_S = 2.0
RETRY_DELAY_S = 1.0


class HeldEntry:
    """One call that waits."""

    __slots__ = ("call_id", "here", "size")

    def __init__(self, call_id: int, size: int) -> None:
        self.call_id = call_id
        self.size = size
        """Bytes of its payloads, announced or arrived."""
        self.here = 0
        """Those of them that are here."""


class Line:
    """The held calls of one caller."""

    __slots__ = ("entries", "heard_at", "held", "incomplete")

    def __init__(self, now: float) -> None:
        self.held: Held[RouterRun] = Held()
        self.entries: dict[RouterRun, HeldEntry] = {}
        """All that is held."""
        self.incomplete: dict[int, RouterRun] = {}
        """By call id."""
        self.heard_at = now
        """When the newest bytes of the caller arrived, monotonic seconds."""


class HeldUploads:
    """The payloads under way."""

    __slots__ = ("_bound", "_due", "here", "lines")

    def __init__(self, max_bytes: int = MAX_UPLOAD_BYTES) -> None:
        self.lines: dict[Caller, Line] = {}
        """Callers with payloads under way; empty while there are none."""
        self._bound: FairBound[Caller] = FairBound.beyond(max_bytes, FLOOR_BYTES)
        """Bytes of everything in the lines, announced or here."""
        self.here = 0
        """Those of them that are here."""
        self._due = inf
        """Before this time no upload of any caller is stalled."""

    def refuse(self, run: RouterRun) -> Failure | None:
        """The failure if the run would have to wait here and there is no room; else None."""
        line = self.lines.get(run.caller)
        bound, size = self._bound, _size(run)
        if not bound.total or not _waits(run, line) or (over := bound.over(run.caller, size)) is None:
            return None
        if over is Over.SHARE:
            return failures.uploads_full_of_one(size, bound.held[run.caller], bound.share, RETRY_DELAY_S)
        return failures.uploads_full(size, bound.total, bound.most, RETRY_DELAY_S)

    def take(self, run: RouterRun, now: float) -> bool:
        """Keeps the run, if it waits for its payload (then it is one call), or behind one of its key that does."""
        line = self.lines.get(run.caller)
        if not _waits(run, line):
            return False
        if line is None:
            line = self.lines[run.caller] = Line(now)
            self._due = min(self._due, now + self._patience_s)
        entry = line.entries[run] = HeldEntry(run.ids[0], _size(run))
        self._bound.take(run.caller, entry.size)
        if isinstance(run.payloads[0], Announced):
            line.held.add_incomplete(run, run.options.ordering_key)
            line.incomplete[entry.call_id] = run
        else:
            line.held.add_behind(run, run.options.ordering_key)
            self._came(entry, entry.size, now)
        return True

    def received(self, caller: Caller, call_id: int, size: int, now: float) -> None:
        """Counts `size` bytes that the caller sent of a payload. Those of calls that have ended do not count."""
        line = self.lines.get(caller)
        if line is not None and (run := line.incomplete.get(call_id)) is not None:
            line.heard_at = now
            self._came(line.entries[run], size, now)

    def complete(self, caller: Caller, call_id: int, payload: Payload) -> list[RouterRun]:
        """A payload is complete. Returns the calls that can begin, in order; none if the call has ended."""
        line = self.lines.get(caller)
        run = line.incomplete.pop(call_id, None) if line is not None else None
        if line is None or run is None:
            return []
        if run.waiting:
            run.payloads = [payload]
        released = line.held.complete(run)
        self._gone(caller, line, released)
        return [each for each in released if each.waiting]

    def release_ended(self, ended: Iterable[RouterRun]) -> list[RouterRun]:
        """Returns the calls that waited behind these, which have ended without their payloads, in order."""
        released: list[RouterRun] = []
        for run in ended:
            line = self.lines.get(run.caller)
            if line is None or (entry := line.entries.get(run)) is None:
                continue
            del line.incomplete[entry.call_id]
            behind = line.held.remove(run)
            self._gone(run.caller, line, [run, *behind])
            released += behind
        return [each for each in released if each.waiting]

    def left(self, caller: Caller) -> None:
        """The caller has left."""
        line = self.lines.pop(caller, None)
        for entry in line.entries.values() if line is not None else ():
            self._bound.give(caller, entry.size)
            self.here -= entry.here

    def find(self, caller: Caller, call_id: int) -> RouterRun | None:
        """The call, if its payload is still awaited."""
        line = self.lines.get(caller)
        return line.incomplete.get(call_id) if line is not None else None

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When to call `pop_stalled`; None if nothing is under way."""
        return self._due if self.lines else None

    def pop_stalled(self, now: float) -> list[tuple[RouterRun, Failure]]:
        """The calls whose callers have sent no chunk for too long, each with the failure that it gets."""
        if now < self._due:
            return []
        patience_s = self._patience_s
        failure = failures.upload_stalled(patience_s)
        stalled = [line for line in self.lines.values() if line.heard_at + patience_s <= now]
        others = [line.heard_at + patience_s for line in self.lines.values() if line.heard_at + patience_s > now]
        self._due = min(others, default=inf)
        return [(run, failure) for line in stalled for run in line.incomplete.values()]

    @property
    def _patience_s(self) -> float:
        return CROWDED_STALL_S if self._is_crowded else STALL_S

    @property
    def _is_crowded(self) -> bool:
        return self.here > CROWDED * self._bound.most

    # -- in here ---------------------------------------------------------------------------------------------------

    def _came(self, entry: HeldEntry, size: int, now: float) -> None:
        was_crowded = self._is_crowded
        entry.here += size
        self.here += size
        if not was_crowded and self._is_crowded:
            self._due = now  # patience is shorter from now on

    def _gone(self, caller: Caller, line: Line, runs: Iterable[RouterRun]) -> None:
        """These do not wait here any more."""
        for run in runs:
            entry = line.entries.pop(run)
            self._bound.give(caller, entry.size)
            self.here -= entry.here
        if not line.incomplete:
            del self.lines[caller]


def _waits(run: RouterRun, line: Line | None) -> bool:
    is_behind = line is not None and line.held.holds(run.options.ordering_key)
    return is_behind or isinstance(run.payloads[0], Announced)


def _size(run: RouterRun) -> int:
    return nbytes_of(run.payloads)


class Uploads(Feature):
    """Holds calls back until their payloads have arrived, and fails those whose payloads will not arrive."""

    def __init__(self, max_bytes: int, outcomes: CallerOutcomes, submissions: Submissions) -> None:
        """`max_bytes` of all payloads that are under way in chunks, and of what waits behind them."""
        self.held = HeldUploads(max_bytes)
        self._outcomes = outcomes
        self._submissions = submissions

    @property
    def under_way(self) -> Collection[object]:
        """Callers of which payloads are arriving."""
        return self.held.lines

    def arrives(self, run: RouterRun, step: Step) -> bool:
        """Whether the run waits for payloads, or fails because there is no room for them."""
        if failure := self.held.refuse(run):
            self._outcomes.fail_waiting(run, failure, step)
            return True
        if not self.held.take(run, step.now):
            return False
        is_announced = type(run.payloads[0]) is Announced
        step.advance(run, RunEvent.PAYLOAD_ANNOUNCED if is_announced else RunEvent.HELD)
        return True

    def holds_keys(self, _caller: Caller) -> bool:
        """Any payload under way: calls of many keys are then looked at key by key."""
        return bool(self.held.lines)

    def ended_early(self, run: RouterRun, step: Step) -> None:
        """What waits behind the run begins."""
        step.then(partial(self._begin_behind, run))

    def left(self, caller: Caller, _step: Step) -> None:
        """What waits for payloads of the caller is forgotten here; its calls end next."""
        self.held.left(caller)

    def next_deadline(self) -> float | None:
        """When uploads stall."""
        return self.held.next_deadline()

    def expire(self, step: Step) -> None:
        """Fails calls whose callers have sent no chunk for too long."""
        for run, failure in self.held.pop_stalled(step.now):
            self._outcomes.fail_waiting(run, failure, step)

    def chunk_arrived(self, event: ChunkArrived, step: Step) -> None:
        """Bytes of a payload have arrived."""
        self.held.received(event.caller, event.call_id, event.size, step.now)

    def upload_completed(self, event: UploadCompleted, step: Step) -> None:
        """The call begins, and the calls that waited behind it."""
        if (arrived := self.held.find(event.caller, event.call_id)) is not None and arrived.waiting:
            step.advance(arrived, RunEvent.PAYLOAD_ARRIVED)
        self._begin(self.held.complete(event.caller, event.call_id, event.payload), step)

    def upload_failed(self, event: UploadFailed, step: Step) -> None:
        """The call fails."""
        run = self.held.find(event.caller, event.call_id)
        if run is not None:
            self._outcomes.fail_waiting(run, event.failure, step)

    def _begin_behind(self, ended: RouterRun, step: Step) -> None:
        self._begin(self.held.release_ended([ended]), step)

    def _begin(self, runs: Iterable[RouterRun], step: Step) -> None:
        for run in runs:
            step.advance(run, RunEvent.RELEASED)
            self._submissions.begin(run, step)
