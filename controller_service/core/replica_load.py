"""The load that a replica has reported. Not observed state: it changes each second, and nothing is reconciled for it.

Owner: the link to the replica has the newest ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCalls:
    """What one incarnation has done since its start."""

    calls: int
    """Executed to their end, well or not."""
    failed: int
    """Ended in a failure, executed or not."""
    batches: int
    batched_calls: int
    """Calls in these."""
    times: tuple[int, ...] = ()
    """Calls that have ended, by the time that they ran, in the buckets of `CALL_TIMES`; empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLoad:
    """Load of one replica at one time."""

    ongoing: int
    """Permits in use: calls, lanes that have their turn, slots."""
    slots: int
    """Of these, slots that are reserved and not used, and those of direct streams."""
    waiting: int
    """What waits for a permit, or in a lane."""
    sampled_at: float | None
    """By the replica's clock, seconds since 1970; None: it does not say."""
    totals: ExecutedCalls | None = None
    """None: it does not say."""
