"""One caller (a client's stream, or one unary call): its window, open runs, and credit for yielded values.

Invariants: call ids strictly increase; `calls <= window.calls` and `size <= window.bytes`, except that one call larger
than the window is always allowed, and does not count in bytes. A call counts until its outcome was put into a frame, so
a client that does not read is no longer admitted.
Owner: the scheduler keeps `runs`; the edge calls `admit` and `released`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, NamedTuple

from router_service.core.calls import Flow
from router_service.core.limits.quotas import CallerShare
from router_service.core.rosters import SessionConnection
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason
from slotmesh.streams.limits import (
    MAX_BYTES_AHEAD,
    MAX_CALL_ID,
    MAX_PAYLOAD_BYTES,
    MAX_STOP_GENERATIONS,
    MAX_VALUES_AHEAD,
    START_WINDOW_BYTES,
    START_WINDOW_CALLS,
)


class CallCredit(NamedTuple):
    """The lead that a handler that yields may have over its caller, until either limit is reached; at least one value.

    Purpose: a replica steps a handler until it is a credit ahead of the values that were taken. One caller can have
    thousands of such calls; if it does not read, their values wait at the router. So the more such calls a caller has,
    the smaller the credit of its new ones. The caller counts; calls carry their credit to the replica
    (`replicas/frames.py`).
    Invariants: together, `n` calls of a caller have at most `SHARED_BYTES` under way for each time that `n` can be
    halved, plus once more, and each of them one value besides. This holds whichever calls end: of those that are left,
    the n-th oldest was at least the n-th when it was sent.
    """

    values: int
    bytes: int


ALONE: Final = CallCredit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)
"""Credit of a call that is its caller's only one. No handler gets further ahead of its caller."""
HALF: Final = CallCredit(ALONE.values // 2, ALONE.bytes // 2)
"""A consumer acknowledges at the latest when it has taken so much."""
SHARED_BYTES: Final = 2 * 1024 * 1024
"""What the second and third call have together at most, the next four, the next eight, …"""
SMALL_BYTES: Final = 128
"""Values cost memory however small they are: a credit has no more of them than if they had this size."""
MAX_LEVEL: Final = 14


def _credit_at(level: int) -> CallCredit:
    size = min(SHARED_BYTES >> level, HALF.bytes)
    return CallCredit(max(1, min(size // SMALL_BYTES, HALF.values)), size)


CREDITS: Final = (ALONE, *map(_credit_at, range(1, MAX_LEVEL + 1)))
"""By level: how often the number of calls can be halved."""


def level_of(calls: int) -> int:
    """The level of a call with which its caller has `calls` calls."""
    return min(calls.bit_length() - 1, MAX_LEVEL)


@dataclass(frozen=True, slots=True)
class Window:
    """How much a caller may have unanswered."""

    calls: int
    bytes: int
    """Payload bytes."""


START_WINDOW = Window(START_WINDOW_CALLS, START_WINDOW_BYTES)
"""What clients keep to before a window arrives."""


MAX_STOPS = 65_536
"""Ordering keys of one caller that are known to have stopped; of more, the oldest are forgotten."""


class Caller:
    """The accounting of one caller. Compared by identity."""

    __slots__ = (
        "calls",
        "flow",
        "knows",
        "large",
        "last_id",
        "max_value_bytes",
        "request_id",
        "runs",
        "session",
        "share",
        "size",
        "stops",
        "streams",
        "window",
    )

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
        self.window = window
        self.session = session
        """The session's connection; None without a session: then the caller's calls end when it disconnects."""
        self.flow = flow or Flow()
        self.share = share
        self.calls = 0
        """Calls accepted whose outcome has not left."""
        self.size = 0
        """Their payload bytes."""
        self.large = 0
        """Bytes of the one call that is larger than the window; 0 where none is unanswered."""
        self.last_id = 0
        self.runs: dict[RouterRun, None] = {}
        """Runs with calls that have no outcome, in order of arrival."""
        self.stops: dict[str, dict[int, int]] = {}
        """Where calls that stop after a failure have stopped: ordering key -> generation -> id of the first failure."""
        self.streams: dict[int, int] = {}
        """Its calls that take several results, from when they were sent until their outcome has left: id, and level of
        credit."""
        self.request_id = ""
        """Of the reservation that it waits for, and others may, too; empty where it waits for none."""
        self.knows: frozenset[str] | None = None
        """The endpoints that it may see; None: all."""
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
            if is_quick(run.options.method):
                calls += run.unanswered
                if calls >= most:
                    break
        return calls

    def ids_apart(self, runs: int) -> list[int]:
        """The last call ids of every `runs`-th open run: points at which work on all of them can pause."""
        return [run.ids[-1] for run in islice(self.runs, runs - 1, None, runs) if run.ids]

    def admit(self, ids: Sequence[int], size: int) -> Failure | None:
        """Accepts a batch of `size` payload bytes, or returns why it is rejected; a rejected batch changes nothing."""
        count = len(ids)
        if failure := self._check_ids(ids):
            return failure
        window = self.window
        is_large = size > window.bytes and count == 1 and not self.large
        has_room = is_large or self.size - self.large + size <= window.bytes
        if self.calls + count > window.calls or not has_room:
            return Failure(
                reason=Reason.WINDOW_EXCEEDED,
                message=(
                    f"{self.calls} calls and {self.size} bytes are unanswered; {count} calls and {size} bytes more "
                    f"pass the window of {window.calls} calls and {window.bytes} bytes: wait for results"
                ),
                retry_delay_s=0.01,
            )
        if self.share is not None and (failure := self.share.refusal(count, size)):
            return failure
        if is_large:
            self.large = size
        self.count(count, size)
        self.last_id = ids[-1]
        return None

    def count(self, calls: int, size: int) -> None:
        """Adds `calls` calls with `size` payload bytes."""
        self.calls += calls
        self.size += size
        if self.share is not None:
            self.share.take(calls, size)

    def leave(self) -> None:
        """The stream or rpc has ended: its calls count no more, whatever becomes of them."""
        if self.share is not None:
            self.share.give(self.calls, self.size)
            self.share.give_keys(len(self.stops))
            self.share = None

    def stop(self, key: str, generation: int, call_id: int) -> bool:
        """A call has failed: later ones of its key and generation are to fail, too. Returns whether that is new."""
        known = self.stops.get(key)
        if known is None and (known := self._new_stop(key)) is None:
            return True
        if known.get(generation, call_id + 1) <= call_id:
            return False
        known[generation] = call_id
        if len(known) > MAX_STOP_GENERATIONS:
            del known[min(known)]
        return generation in known

    def _new_stop(self, key: str) -> dict[int, int] | None:
        """Where the key has stopped: nowhere yet. None if nothing can be remembered of it: the replica does."""
        share = self.share
        is_full = share is not None and not share.has_room_for_key
        if self.stops and (is_full or len(self.stops) >= MAX_STOPS):
            del self.stops[next(iter(self.stops))]
        elif is_full:
            return None
        elif share is not None:
            share.take_key()
        known = self.stops[key] = {}
        return known

    def has_stopped(self, key: str, generation: int, call_id: int) -> bool:
        """Whether this call comes after one of its key and generation that has failed."""
        known = self.stops.get(key)
        return known is not None and known.get(generation, call_id) < call_id

    def released(self, calls: int, size: int) -> None:
        """Outcomes of `calls` calls with `size` request bytes left for the client."""
        self.calls -= calls
        self.size -= size
        if self.share is not None:
            self.share.give(calls, size)
        if self.size < self.large:  # all others together are smaller
            self.large = 0

    def stream(self, ids: Iterable[int]) -> int:
        """These calls, which take several results, are being sent. Returns the level of their credit."""
        streams = self.streams
        streams.update(dict.fromkeys(ids, 0))
        level = level_of(len(streams))
        streams.update(dict.fromkeys(ids, level))
        return level

    def streamed(self, ids: Iterable[int]) -> None:
        """Outcomes of these calls have left, and so have their values. Others than `streams` are ignored."""
        for call_id in ids:
            self.streams.pop(call_id, None)

    def _check_ids(self, ids: Sequence[int]) -> Failure | None:
        first, last = ids[0], ids[-1]
        if first < 1 or last > MAX_CALL_ID:
            return Failure(
                reason=Reason.BAD_REQUEST,
                message=f"first_call_id: ids are 1 … 2^53 - 1, got {first} … {last}",
                metadata={"field": "first_call_id"},
            )
        if first <= self.last_id or (not isinstance(ids, range) and any(b <= a for a, b in pairwise(ids))):
            return Failure(
                reason=Reason.DUPLICATE_CALL_ID,
                message=f"ids strictly increase on a stream: {self.last_id} was used, then came {first}",
            )
        return None
