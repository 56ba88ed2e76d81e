"""A tap: the calls of one endpoint that somebody looks at, as they end, for as long as nobody has taken them.

Invariants: calls and bytes of payloads that wait here are bounded; what does not fit, or comes too quickly, is counted.
Owner: the shell makes a tap and takes from it, the scheduler fills it; both run on one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotmesh.errors import Executed, Reason

MAX_WAITING_CALLS: Final = 10_000
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of payloads and results."""
SECOND_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TapWish:
    """What somebody wants to see."""

    endpoint: str
    method: str = ""
    """Empty means all."""
    tenant: str | None = None
    """None means all."""
    share: float = 1.0
    """Of the calls, above 0."""
    calls_per_s: int = 1_000
    """At most."""
    payload_bytes: int = 0
    """Of each payload and result, at most; 0: none is shown."""

    def wants(self, method: str, tenant: str) -> bool:
        """Whether calls of the method and tenant are wanted."""
        return (not self.method or self.method == (method or "__call__")) and self.tenant in {None, tenant}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call that has ended."""

    ended_at: float
    """Monotonic seconds."""
    method: str
    backend: str
    """Empty where it had none."""
    replica_id: str
    """Empty where it was sent to none."""
    request_bytes: int
    response_bytes: int | None
    """None where it has no result."""
    queue_s: float
    run_s: float | None
    """None where it was sent to no replica."""
    reason: Reason | None
    """None where it ended well."""
    executed: Executed
    attempt: int
    """From 1."""
    is_ordered: bool
    tenant: str = ""
    payload: bytes | None = None
    """Its beginning, if it is wanted; likewise the result."""
    result: bytes | None = None
    content_type: str = ""


class CallTap:
    """Compared by identity."""

    def __init__(self, wish: TapWish) -> None:
        self.wish = wish
        self._waiting: list[SeenCall] = []
        self._waiting_bytes = 0
        self._dropped = 0
        self._second_began = float("-inf")
        self._of_second = 0
        """Calls that were let in since then."""

    def room(self, now: float) -> int:
        """How many calls may come now."""
        if now - self._second_began >= SECOND_S:
            self._second_began, self._of_second = now, 0
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            return 0
        return min(self.wish.calls_per_s - self._of_second, MAX_WAITING_CALLS - len(self._waiting))

    def add(self, call: SeenCall) -> None:
        """There is room for it."""
        self._waiting.append(call)
        self._of_second += 1
        self._waiting_bytes += len(call.payload or b"") + len(call.result or b"")

    def drop(self, count: int) -> None:
        """So many were drawn, and there is no room for them."""
        self._dropped += count

    def take(self) -> tuple[list[SeenCall], int]:
        """What has come since the last time, and how many were dropped."""
        taken = self._waiting, self._dropped
        self._waiting, self._waiting_bytes, self._dropped = [], 0, 0
        return taken
