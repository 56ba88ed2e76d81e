"""How long calls took, and how they ended: what summaries are made of. Pure.

Invariants: it is as large for a billion calls as for ten; a quantile is at most 2 % above the true one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil, inf, log
from typing import Any, Final

SMALLEST_S: Final = 1e-5
"""What is quicker is as quick as this."""
GROWTH: Final = 1.02
"""From the bound of a bucket to the next."""
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
_STEP: Final = log(GROWTH)


class LatencyHistogram:
    """Times in buckets that grow by 2 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.sum_s = 0.0
        self.min_s = inf
        self.max_s = 0.0

    def add(self, time_s: float) -> None:
        """Adds the time of one call."""
        self._counts[max(0, ceil(log(max(time_s, SMALLEST_S) / SMALLEST_S) / _STEP))] += 1
        self.count += 1
        self.sum_s += time_s
        self.min_s, self.max_s = min(self.min_s, time_s), max(self.max_s, time_s)

    def quantile(self, share: float) -> float | None:
        """The upper bound, in seconds, for this share of the calls; None if there were no calls."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(self.max_s, SMALLEST_S * GROWTH**bucket)
        return None

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds, seconds, and calls of those buckets that have any, from the quickest on."""
        for bucket in sorted(self._counts):
            yield SMALLEST_S * GROWTH**bucket, self._counts[bucket]


class CallTally:
    """How some calls have ended."""

    def __init__(self) -> None:
        self.well = LatencyHistogram()
        """Of calls that ended well."""
        self.failed: Counter[str] = Counter()
        """By reason."""

    def add(self, time_s: float, reason: str = "") -> None:
        """A call has ended; `reason` is empty where it ended well."""
        if reason:
            self.failed[reason] += 1
        else:
            self.well.add(time_s)

    @property
    def calls(self) -> int:
        """All that ended."""
        return self.well.count + self.failed.total()

    def document(self, elapsed_s: float) -> dict[str, Any]:
        """As values of JSON; times are milliseconds."""
        well = self.well
        return {
            "calls": self.calls,
            "failed": dict(sorted(self.failed.items())),
            "seconds": round(elapsed_s, 3),
            "calls_per_s": round(self.calls / elapsed_s, 3) if elapsed_s > 0 else None,
            "mean_ms": _ms(well.sum_s / well.count) if well.count else None,
            "min_ms": _ms(well.min_s) if well.count else None,
            **{f"p{_name(share)}_ms": _ms(well.quantile(share)) for share in QUANTILES},
            "max_ms": _ms(well.max_s) if well.count else None,
        }

    def lines(self, elapsed_s: float) -> Iterable[str]:
        """For people."""
        said = self.document(elapsed_s)
        rate = "" if said["calls_per_s"] is None else f", {said['calls_per_s']:,.1f} a second"
        yield f"{self.calls:,} calls in {elapsed_s:.2f} s{rate}"
        if self.failed:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.failed.most_common())
            yield f"failed: {self.failed.total():,} ({reasons})"
        if self.well.count:
            names = ("min", *(f"p{_name(share)}" for share in QUANTILES), "max")
            yield "  ".join(f"{name.replace('_', '.')} {said[f'{name}_ms']:,.3g} ms" for name in names)


def _name(share: float) -> str:
    return f"{share * 100:g}".replace(".", "_")


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s * 1e3, 3)
