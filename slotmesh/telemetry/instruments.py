"""Instruments that are read, not written: a scrape looks at integers which the cores keep anyway.

Purpose: counting costs nothing on the path of a call.
Invariants: `read` runs on the event loop that registered it, so it may look at state which has a single writer; a loop
that does not answer in time, or has ended, yields no values instead of hanging the scrape.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from slotmesh import histogram as plain
from slotmesh.telemetry.names import Metric

LabelsT = TypeVar("LabelsT", bound=tuple[str, ...])
"""A combination of the metric's attributes, in their order; `()` where it has none."""

Read = Callable[[], Mapping[LabelsT, int | float]]
"""Gives a value for each combination."""

ValueT = TypeVar("ValueT")


class Buckets(NamedTuple):
    """One histogram: `counts[i]` values are at most `bounds[i]`, the last count is of all above."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    """Sum of all values."""

    @classmethod
    def of(cls, histogram: plain.Histogram) -> Buckets:
        """One that is counted in plain integers, as it is now."""
        return cls(histogram.bounds, tuple(histogram.counts), histogram.total)


ReadBuckets = Callable[[], Mapping[tuple[str, ...], Buckets]]
"""Gives a histogram for each combination of the metric's attributes."""

SCRAPE_TIMEOUT_S = 2.0
"""How long a scrape waits for the event loop."""


def observe_counter(meter: Meter, metric: Metric, read: Read[LabelsT]) -> None:
    """Exports totals that only grow."""
    meter.create_observable_counter(metric.name, [_callback(metric, read)], metric.unit, metric.description)


def observe_gauge(meter: Meter, metric: Metric, read: Read[LabelsT]) -> None:
    """Exports values of this moment. They are not summed up over attributes: use it for sizes and revisions."""
    meter.create_observable_gauge(metric.name, [_callback(metric, read)], metric.unit, metric.description)


def _callback(metric: Metric, read: Read[LabelsT]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    on_owner = on_this_loop(read)

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, dict(zip(metric.attributes, labels, strict=True)))
            for labels, value in on_owner().items()
        ]

    return observe


def on_this_loop(read: Callable[[], Mapping[LabelsT, ValueT]]) -> Callable[[], Mapping[LabelsT, ValueT]]:
    """The same function, to be called from any thread, run by the loop that runs now; as it is where none does."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return read
    owner = threading.get_ident()

    def read_there() -> Mapping[LabelsT, ValueT]:
        if threading.get_ident() == owner:
            return read()
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def resolve() -> None:
            try:
                answer.set_result(dict(read()))
            except Exception as error:  # noqa: BLE001 - handed on to the scrape, which logs it
                answer.set_exception(error)

        try:
            loop.call_soon_threadsafe(resolve)
            values: Mapping[LabelsT, ValueT] = answer.result(SCRAPE_TIMEOUT_S)
        except (RuntimeError, TimeoutError):
            return {}
        return values

    return read_there
