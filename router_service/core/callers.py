"""What one caller may have under way: its window, the credit of calls that yield values, and lanes that stopped.

Invariants: call ids strictly increase; `calls <= window.calls` and `size <= window.bytes`, except that one call larger
than the window is always allowed, and does not count in bytes. A call counts until its outcome was put into a frame, so
a client that does not read is no longer admitted.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from router_service.core.limits.quotas import CallerShare
from slotmesh.errors import Failure, Reason
from slotmesh.streams.limits import (
    MAX_BYTES_AHEAD,
    MAX_CALL_ID,
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


class WindowUse:
    """What a caller has under way, within its window and its share of the quotas."""

    __slots__ = ("calls", "large", "last_id", "share", "size", "window")

    def __init__(self, window: Window, share: CallerShare | None = None) -> None:
        """`share`: of the identified caller; None if it has no identity."""
        self.window = window
        self.share = share
        self.calls = 0
        """Calls accepted whose outcome has not left."""
        self.size = 0
        """Their payload bytes."""
        self.large = 0
        """Bytes of the one call that is larger than the window; 0 if none is unanswered."""
        self.last_id = 0

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

    def released(self, calls: int, size: int) -> None:
        """Outcomes of `calls` calls with `size` request bytes left for the client."""
        self.calls -= calls
        self.size -= size
        if self.share is not None:
            self.share.give(calls, size)
        if self.size < self.large:  # all others together are smaller
            self.large = 0

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


class LaneStops:
    """Where lanes of one caller have stopped: ordering key -> generation -> id of the first call that failed."""

    __slots__ = ("_keys", "share")

    def __init__(self, share: CallerShare | None) -> None:
        self._keys: OrderedDict[str, dict[int, int]] = OrderedDict()
        self.share = share

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, key: str) -> dict[int, int]:
        """The first failure of each generation of the key."""
        return self._keys.get(key, {})

    def stop(self, key: str, generation: int, call_id: int) -> bool:
        """A call has failed: later ones of its key and generation are to fail, too. Returns whether that is new."""
        known = self._keys.get(key)
        if known is None and (known := self._new_stop(key)) is None:
            return True
        if known.get(generation, call_id + 1) <= call_id:
            return False
        known[generation] = call_id
        if len(known) > MAX_STOP_GENERATIONS:
            del known[min(known)]
        return generation in known

    def has_stopped(self, key: str, generation: int, call_id: int) -> bool:
        """Whether this call comes after one of its key and generation that has failed."""
        known = self._keys.get(key)
        return known is not None and known.get(generation, call_id) < call_id

    def _new_stop(self, key: str) -> dict[int, int] | None:
        """Where the key has stopped: nowhere yet. None if nothing can be remembered of it: the replica does."""
        share = self.share
        is_full = share is not None and not share.has_room_for_key
        if self._keys and (is_full or len(self._keys) >= MAX_STOPS):
            self._keys.popitem(last=False)
        elif is_full:
            return None
        elif share is not None:
            share.take_key()
        known = self._keys[key] = {}
        return known
