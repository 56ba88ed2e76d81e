"""Quotas per authenticated caller, so that one caller cannot exhaust a process for the others.

Purpose: the one place that counts by caller. The code that takes an amount returns it exactly once.
Invariants: a caller that holds nothing has no entry. Quotas apply to callers with a name: without authentication, and
for members of the mesh, only the bounds of the process apply. Pure.
Owner: the edge of a service, on its event loop.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from typing import Final

from slotmesh.errors import Failure, Reason

RETRY_S: Final = 1.0
"""Retry delay for a quota that the caller itself frees, in seconds."""
BURST_S: Final = 10.0
"""A rate may be saved up for this time."""
_SWEEP_FROM: Final = 1_024
"""Entries of a rate below which full buckets are not searched for and dropped."""


class QuotaKind(StrEnum):
    """The counted resource. The values are those of the metric."""

    STREAMS = "streams"
    CALLS = "calls"
    BYTES = "bytes"
    KEYS = "keys"
    SESSIONS = "sessions"
    SLOTS = "slots"
    CHANGES = "changes"


_HAS: Final = {
    QuotaKind.STREAMS: "streams open",
    QuotaKind.CALLS: "calls unanswered",
    QuotaKind.BYTES: "payload bytes in calls that are unanswered",
    QuotaKind.KEYS: "ordering keys that have stopped",
    QuotaKind.SESSIONS: "sessions, with those that were left open",
    QuotaKind.SLOTS: "slots reserved in which no call has begun",
    QuotaKind.CHANGES: "changes a second",
}
"""Text for messages."""


def over_quota(kind: QuotaKind, who: str, held: int, more: int, most: int, setting: str) -> Failure:
    """The failure of a caller that would exceed its quota. `setting`: the name of the limit."""
    return Failure(
        reason=Reason.QUOTA_EXCEEDED,
        message=(
            f"{who} has {held:,} {_HAS[kind]}, and {more:,} more would pass the {most:,} that one caller may have "
            f"({setting}): end some first, or have it raised"
        ),
        retry_delay_s=RETRY_S,
        metadata={"quota": kind.value},
    )


class Quota:
    """The amount of one resource that each caller holds."""

    def __init__(self, kind: QuotaKind, most: int, setting: str) -> None:
        """`most`: the limit of one caller. `setting`: its name, for messages."""
        self.kind = kind
        self.most = most
        self.held: dict[str, int] = {}
        """By the caller's name."""
        self.refused = 0
        """The number of refusals."""
        self._setting = setting

    def refusal(self, who: str, amount: int = 1) -> Failure | None:
        """Why this caller may not take this amount more; None if it may. Counts only the refusal."""
        if not who:
            return None
        held = self.held.get(who, 0)
        if held + amount <= self.most:
            return None
        self.refused += 1
        return over_quota(self.kind, who, held, amount, self.most, self._setting)

    def is_full(self, who: str) -> bool:
        """Whether the caller has reached the limit."""
        return bool(who) and self.held.get(who, 0) >= self.most

    def take(self, who: str, amount: int = 1) -> None:
        """Adds to what the caller holds."""
        if who and amount:
            self.held[who] = self.held.get(who, 0) + amount

    def give(self, who: str, amount: int = 1) -> None:
        """Subtracts from what the caller holds."""
        if who and amount:
            left = self.held[who] - amount
            if left:
                self.held[who] = left
            else:
                del self.held[who]


class RateQuota:
    """The rate of one action per caller: a token bucket for each, with a capacity of `BURST_S` seconds' worth.

    Source: the token bucket, https://en.wikipedia.org/wiki/Token_bucket.
    """

    def __init__(self, kind: QuotaKind, per_s: int, setting: str) -> None:
        """`per_s`: the rate per second. `setting`: its name, for messages."""
        self.kind = kind
        self.refused = 0
        """The number of refusals."""
        self._per_s = per_s
        self._most = per_s * BURST_S
        self._setting = setting
        self._left: dict[str, tuple[float, float]] = {}
        """The tokens that each caller has left, and when that was computed in monotonic seconds. Missing: full."""
        self._sweep_at = _SWEEP_FROM

    def take(self, who: str, now: float) -> Failure | None:
        """Takes one token; returns the failure if the caller has none."""
        if not who:
            return None
        left, since = self._left.get(who, (self._most, now))
        left = min(self._most, left + (now - since) * self._per_s)
        if left < 1:
            self.refused += 1
            return Failure(
                reason=Reason.QUOTA_EXCEEDED,
                message=(
                    f"{who} makes more than {self._per_s:,} {_HAS[self.kind]} ({self._setting}), of which it had "
                    f"{ceil(self._most):,} saved up: wait"
                ),
                retry_delay_s=(1 - left) / self._per_s,
                metadata={"quota": self.kind.value},
            )
        self._left[who] = left - 1, now
        if len(self._left) > self._sweep_at:
            self._forget_full(now)
        return None

    def _forget_full(self, now: float) -> None:
        self._left = {
            who: (left, since)
            for who, (left, since) in self._left.items()
            if left + (now - since) * self._per_s < self._most
        }
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._left))
