"""Rates and latencies between two reports of one member, summed over members and by tenant. Pure.

Invariants: a rate belongs to one run of one member, so it is never negative; a value that no member reports is None.
The table of tenants leaves out routers whose reports have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from slotmesh.cli.figures.samples import EndedTotals, MeshSample, RouterReport, SampledRouter, TenantSample
from slotmesh.histogram import CALL_TIMES, quantile_bound
from slotmesh.telemetry.names import OTHER_TENANTS

SILENT_AFTER_S: Final = 3.5
"""The figures of a router whose newest report is older are unknown. Reports are a second apart."""


def rate(newest: int | None, earlier: int | None, seconds: float) -> float | None:
    """The rate per second; None if unknown."""
    if newest is None or earlier is None or seconds <= 0 or newest < earlier:
        return None
    return (newest - earlier) / seconds


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Interval:
    """Two reports of one start of a router."""

    newest: RouterReport
    earlier: RouterReport

    @property
    def seconds(self) -> float:
        """Between them, by the router's clock."""
        return self.newest.at_s - self.earlier.at_s


def intervals(routers: Iterable[SampledRouter]) -> Iterator[Interval]:
    """Of the routers that report now."""
    for router in routers:
        if is_heard(router) and router.newest is not None and router.earlier is not None:
            interval = Interval(router.newest, router.earlier)
            if interval.seconds > 0:
                yield interval


def is_heard(router: SampledRouter) -> bool:
    """Whether it has reported a moment ago."""
    return router.age_s is not None and router.age_s <= SILENT_AFTER_S


@dataclass(frozen=True, slots=True)
class CallQuantiles:
    """Within which time half of the calls ended, and 99 of 100: upper bounds of buckets, seconds."""

    p50_s: float | None
    p99_s: float | None

    @classmethod
    def between(cls, pairs: Iterable[tuple[EndedTotals | None, EndedTotals | None]]) -> CallQuantiles:
        """Of calls that ended well between the earlier totals and the newest ones, (newest, earlier) of each router."""
        return cls.of_counts((_times(newest), _times(earlier)) for newest, earlier in pairs)

    @classmethod
    def of_counts(cls, pairs: Iterable[tuple[Sequence[int] | None, Sequence[int] | None]]) -> CallQuantiles:
        """Of the calls that were added to buckets since, (newest, earlier) of each member."""
        counts = [0] * (len(CALL_TIMES) + 1)
        for newest, earlier in pairs:
            if newest is None or earlier is None or not len(newest) == len(earlier) == len(counts):
                continue
            fresh = [now - before for now, before in zip(newest, earlier, strict=True)]
            if min(fresh) >= 0:
                counts = [one + another for one, another in zip(counts, fresh, strict=True)]
        return cls(quantile_bound(CALL_TIMES, counts, 0.5), quantile_bound(CALL_TIMES, counts, 0.99))


def _times(ended: EndedTotals | None) -> Sequence[int] | None:
    return None if ended is None else ended.times


def shown_time(time_s: float | None) -> str:
    """As `≤ 20 ms`, `≤ 1.5 s`, `> 30 s`; empty if unknown."""
    if time_s is None:
        return ""
    if not isfinite(time_s):
        return f"> {CALL_TIMES[-1]:g} s"
    return f"≤ {time_s:g} s" if time_s >= 1 else f"≤ {time_s * 1000:g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant of an endpoint, over the routers at which it is among the busiest."""

    name: str
    """As ENDPOINT/TENANT."""
    endpoint: str
    tenant: str
    """Empty: all beyond the number of which routers keep account."""
    calls_per_s: float
    """Refused ones included."""
    refused_per_s: float
    """By a limit of the tenant, or by a queue without room for them."""
    unanswered: int


def tenants_of(sample: MeshSample) -> tuple[TenantRow, ...]:
    """Of the routers that have reported a moment ago."""
    said: dict[tuple[str, str], list[TenantSample]] = {}
    for router in sample.routers:
        for endpoint, load in router.newest.endpoints.items() if router.newest and is_heard(router) else ():
            for each in load.tenants:
                said.setdefault((endpoint, each.name), []).append(each)
    rows = [
        TenantRow(
            name=f"{endpoint}/{tenant or OTHER_TENANTS}",
            endpoint=endpoint,
            tenant=tenant,
            calls_per_s=sum(it.calls_per_s for it in each),
            refused_per_s=sum(it.refused_per_s for it in each),
            unanswered=sum(it.unanswered for it in each),
        )
        for (endpoint, tenant), each in said.items()
    ]
    return tuple(sorted(rows, key=lambda it: (-it.calls_per_s, it.name)))


def shown_rate(value: float | None) -> str:
    """Three digits, or whole numbers."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
