"""Quotas: how much of one thing each known caller may have of a process, so that one takes nothing from the others.

Purpose: the one place that counts by caller. What is counted is given back by whoever took it, exactly once.
Invariants: nobody is kept here who has nothing. Quotas tell callers apart, so they bind those whose name is known:
where nobody is asked who they are, and for members of the mesh, only the bounds of the process hold. Pure.
Owner: the edge of a service, on its event loop.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from typing import Final

from slotmesh.errors import Failure, Reason

RETRY_S: Final = 1.0
"""When to try again what is given back by the caller itself."""
BURST_S: Final = 10.0
"""A rate may be saved up for so long."""
_SWEEP_FROM: Final = 1_024
"""Callers of a rate whom nobody looks through."""


class QuotaKind(StrEnum):
    """What is counted. The values are those of the metric."""

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
"""For a person."""


def over_quota(kind: QuotaKind, who: str, held: int, more: int, most: int, setting: str) -> Failure:
    """The failure of a caller who has as much as one may. `setting`: which one says so."""
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
    """How much of one kind each caller has now."""

    def __init__(self, kind: QuotaKind, most: int, setting: str) -> None:
        """`most`: what one caller may have. `setting`: its name, for those who are refused."""
        self.kind = kind
        self.most = most
        self.held: dict[str, int] = {}
        """By the name of the caller."""
        self.refused = 0
        """How often somebody was refused."""
        self._setting = setting

    def refusal(self, who: str, amount: int = 1) -> Failure | None:
        """Why this caller may not have as much more; None where it may. Nothing is counted but the refusal."""
        if not who:
            return None
        held = self.held.get(who, 0)
        if held + amount <= self.most:
            return None
        self.refused += 1
        return over_quota(self.kind, who, held, amount, self.most, self._setting)

    def is_full(self, who: str) -> bool:
        """Whether this caller may have no more."""
        return bool(who) and self.held.get(who, 0) >= self.most

    def take(self, who: str, amount: int = 1) -> None:
        """The caller has as much more."""
        if who and amount:
            self.held[who] = self.held.get(who, 0) + amount

    def give(self, who: str, amount: int = 1) -> None:
        """The caller has as much less."""
        if who and amount:
            left = self.held[who] - amount
            if left:
                self.held[who] = left
            else:
                del self.held[who]


class RateQuota:
    """How often each caller may do something: a bucket of `BURST_S` seconds' worth for each, which fills steadily.

    Source: the token bucket, https://en.wikipedia.org/wiki/Token_bucket.
    """

    def __init__(self, kind: QuotaKind, per_s: int, setting: str) -> None:
        """`per_s`: times a second. `setting`: its name, for those who are refused."""
        self.kind = kind
        self.refused = 0
        """How often somebody was refused."""
        self._per_s = per_s
        self._most = per_s * BURST_S
        self._setting = setting
        self._left: dict[str, tuple[float, float]] = {}
        """What each has left, and when that was computed; monotonic seconds. Who is not here has all."""
        self._sweep_at = _SWEEP_FROM

    def take(self, who: str, now: float) -> Failure | None:
        """The caller does it once; or why it may not yet."""
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
