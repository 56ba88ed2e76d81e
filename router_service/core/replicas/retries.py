"""Retries of one backend: when a failed replica is tried again, and how many lost calls may be executed again.

Owner: the backend.
"""

from __future__ import annotations

from router_service.core.limits.rates import RecentCount
from router_service.core.rosters import ReplicaKey

FIRST_S = 0.1
LONGEST_S = 3.0
"""Keyed calls wait for their owner: longer would be felt when it is back."""
HEALTHY_S = 10.0


class _Record:
    __slots__ = ("strikes", "up_since")

    def __init__(self) -> None:
        self.strikes = 0
        self.up_since: float | None = None


class Ejections:
    """The ejected replicas of one backend, and when each is tried again after its link failed.

    Purpose: a replica that keeps failing is tried less and less often, while enough replicas are left for the load.
    Invariants: intervals double from `FIRST_S` to `LONGEST_S`, jittered, until a link has held for `HEALTHY_S`. While
    more than half of a backend's replicas are out, they are tried at the first interval.
    """

    __slots__ = ("_records", "out")

    def __init__(self) -> None:
        self._records: dict[ReplicaKey, _Record] = {}
        self.out = 0
        """Replicas that are out now."""

    def failed(self, replica: ReplicaKey, replicas: int, now: float, chance: float) -> float:
        """The replica could not be reached, or its link broke; it is one of `replicas`.

        Returns seconds until it may be tried again. `chance` is uniform in [0, 1).
        """
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        if record.up_since is not None and now - record.up_since >= HEALTHY_S:
            record.strikes = 0
        if record.up_since is not None or not record.strikes:
            self.out += 1
        record.up_since = None
        record.strikes += 1
        ceiling_s = min(LONGEST_S, FIRST_S * 2.0 ** min(record.strikes - 1, 16))
        if 2 * self.out > replicas:
            ceiling_s = FIRST_S
        return ceiling_s * (0.5 + 0.5 * chance)

    def came_back(self, replica: ReplicaKey, now: float) -> None:
        """The replica's link is up."""
        record = self._records.get(replica)
        if record is not None and record.up_since is None:
            record.up_since = now
            self.out -= 1

    def forget(self, replica: ReplicaKey) -> None:
        """The replica left the backend."""
        record = self._records.pop(replica, None)
        if record is not None and record.up_since is None:
            self.out -= 1


SHARE = 0.2
FLOOR = 3
WINDOW_S = 10.0


class RetryBudget:
    """How many calls may be executed again.

    Purpose: a lost `idempotent` call is sent again, but a backend that keeps failing does not get more load for it.
    Invariants: within `WINDOW_S`, decaying, there are at most `SHARE` retries per successful call, but `FLOOR` retries
    are always allowed. Calls that were never sent, or were handed back untouched, do not count as retries.
    """

    __slots__ = ("_calls", "_retries")

    def __init__(self) -> None:
        self._calls = RecentCount(WINDOW_S)
        self._retries = RecentCount(WINDOW_S)

    def answered(self, count: int, now: float) -> None:
        """Calls ended well."""
        self._calls.add(count, now)

    def take(self, count: int, now: float) -> int:
        """Takes up to `count` retries out of the budget; returns how many there were."""
        # Rounded, because 15.000000001 are 15.
        allowed = round(max(FLOOR, SHARE * self._calls.value(now)) - self._retries.value(now), 6)
        granted = min(count, max(0, int(allowed)))
        self._retries.add(granted, now)
        return granted
