"""Observable instruments: a scrape reads integers that the cores count anyway.

Purpose: counting costs nothing on the path of a call.
Invariants: `read` runs on the event loop that registered it, so that it may access state with a single writer; a loop
that has ended, or does not respond in time, yields no values, and does not block the scrape.
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
"""The values of the metric's attributes, in their order; `()` if it has none."""

Read = Callable[[], Mapping[LabelsT, int | float]]
"""Returns the value of each combination of attributes."""

ValueT = TypeVar("ValueT")


class Buckets(NamedTuple):
    """One histogram: `counts[i]` is the number of values up to `bounds[i]`, the last one that of all above."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    """Sum of all values."""

    @classmethod
    def of(cls, histogram: plain.Histogram) -> Buckets:
        """The present state of a histogram of plain integers."""
        return cls(histogram.bounds, tuple(histogram.counts), histogram.total)


ReadBuckets = Callable[[], Mapping[tuple[str, ...], Buckets]]
"""Returns the histogram of each combination of attributes."""

SCRAPE_TIMEOUT_S = 2.0
"""How long a scrape waits for the event loop."""


def observe_counter(meter: Meter, metric: Metric, read: Read[LabelsT]) -> None:
    """Exports monotonic totals."""
    meter.create_observable_counter(metric.name, [_callback(metric, read)], metric.unit, metric.description)


def observe_gauge(meter: Meter, metric: Metric, read: Read[LabelsT]) -> None:
    """Exports present values, which are not summed over attributes, such as sizes and revisions."""
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
    """The same function, callable from any thread, run by the present event loop; unchanged if none is running."""
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
