"""Metrics of a handler: what it registers with prometheus_client's default registry, and by OpenTelemetry's API.

Purpose: they are on the replica's page beside slotmesh's own, and in what is pushed, without any set-up by the handler.
Invariants: slotmesh's names win, and slotmesh's own metrics do not depend on the handler's: a collector of the handler
that fails, hangs or has too many samples costs its own metrics, and is logged once. OpenTelemetry's SDK is set up for
them by the first instrument, apart from slotmesh's.
Owner: `slotmesh.telemetry.setup_sdk`; collected in threads of scrapes and pushes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from opentelemetry import metrics as api
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as PushedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import REGISTRY, CollectorRegistry, Metric, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Sample

from slotmesh.logs import get_logger
from slotmesh.telemetry.setup_readers import PushingReader

COLLECT_S: Final = 2.0
"""How long a scrape waits for the handler's collectors."""
MAX_SAMPLES: Final = 20_000
"""Of a handler, in one scrape."""
OWN_PREFIX: Final = "slotmesh_"
_DEFAULTS: Final = (
    "python_gc_",
    "python_info",
    "process_cpu_seconds",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
)
"""How names of what is in the default registry without a handler begin."""
_MAX_LOGGED: Final = 100
_SCOPE: Final = InstrumentationScope("prometheus_client")

_log = get_logger(__name__)


class HandlerMetrics:
    """The metrics of the handler in this process."""

    def __init__(self, resource: Resource, make_push: Callable[[], PushingReader] | None) -> None:
        """`make_push`: makes the reader that pushes them; None: they are not pushed."""
        self._resource = resource
        self._make_push = make_push
        self._instruments = CollectorRegistry()
        """Of OpenTelemetry's API."""
        self._provider: MeterProvider | None = None
        self._push: PushingReader | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while collectors are read."""
        self._collecting: _Collection | None = None
        """The newest reading, which may hang."""
        self._logged: set[str] = set()

    def use(self) -> None:
        """Has OpenTelemetry's API use this, unless the handler has set a provider of its own."""
        if type(api.get_meter_provider()).__name__ == "_ProxyMeterProvider":  # of the API: no other is set
            api.set_meter_provider(_LazyProvider(self._sdk))

    def beside(self, own: Collection[Metric]) -> Iterator[Metric]:
        """The families that may be on a page beside slotmesh's own. Blocks for `COLLECT_S` at most."""
        used = {name for it in own for name in _names_of(it)}
        for it in (*self._collect(self._instruments), *self._of_default_registry()):
            names = _names_of(it)
            if not names.isdisjoint(used) or it.name.startswith(OWN_PREFIX):
                if not it.name.startswith(_DEFAULTS):
                    self._log_once(it.name, "a metric of the handler has the name of another, and is left out")
                continue
            used |= names
            yield it

    def added_to(self, pushed: MetricsData) -> MetricsData:
        """What is pushed, with the families of prometheus_client; those of OpenTelemetry's API are pushed apart."""
        families = self._of_default_registry()
        if not families or not pushed.resource_metrics:
            return pushed
        now_ns, found = time.time_ns(), list[PushedMetric]()
        for it in families:
            try:
                found += () if it.name.startswith(OWN_PREFIX) else _pushed(it, now_ns)
            except (KeyError, ValueError, OverflowError):
                self._log_once(it.name, "a metric of the handler is not pushed: its buckets are none of a histogram")
        first, *others = pushed.resource_metrics
        mine = ScopeMetrics(scope=_SCOPE, metrics=found, schema_url="")
        return replace(pushed, resource_metrics=[replace(first, scope_metrics=[*first.scope_metrics, mine]), *others])

    def shutdown(self) -> None:
        """Pushes a last time, and stops. May be called again."""
        with self._lock:
            provider, self._provider = self._provider, None
        if self._push is not None:
            self._push.shutdown()
        if provider is not None:
            provider.shutdown()

    def _sdk(self) -> MeterProvider:
        with self._lock:
            if self._provider is None:
                page = PrometheusMetricReader(True, scope_info_enabled=False, registry=self._instruments)
                self._push = self._make_push() if self._make_push is not None else None
                readers = [page] if self._push is None else [page, self._push]
                self._provider = MeterProvider(readers, self._resource, shutdown_on_exit=False)
            return self._provider

    def _of_default_registry(self) -> Sequence[Metric]:
        """All of it, if the handler has registered anything there."""
        families = self._collect(REGISTRY)
        return families if any(not it.name.startswith(_DEFAULTS) for it in families) else ()

    def _collect(self, registry: CollectorRegistry) -> Sequence[Metric]:
        """What is read within the limit. One reading at a time: one that hangs is not repeated before it has ended."""
        if not self._turn.acquire(timeout=COLLECT_S):
            return ()
        try:
            if self._collecting is not None and self._collecting.is_alive():
                return ()
            self._collecting = collecting = _Collection(registry)
            collecting.start()
            collecting.join(COLLECT_S)
        finally:
            self._turn.release()
        if collecting.is_alive():
            self._log_once("", f"the handler's metrics are not read: a collector takes longer than {COLLECT_S:g} s")
            return ()
        for problem in collecting.problems:
            self._log_once(problem, "metrics of the handler are left out")
        return collecting.families

    def _log_once(self, what: str, text: str) -> None:
        if what not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(what)
            _log.warning(text, what=what)


class _Collection(threading.Thread):
    """A reading of collectors, which may hang, fail, or have too much."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(name="metrics of the handler", daemon=True)
        self._registry = registry
        self.families: list[Metric] = []
        self.problems: set[str] = set()
        """Without the texts of exceptions, which may be secret."""

    def run(self) -> None:
        samples = 0
        # One that fails would end the registry's own reading of all.
        collectors: Sequence[Any] = [*getattr(self._registry, "_collector_to_names", [self._registry])]
        for each in collectors:
            try:
                for it in each.collect():
                    samples += max(1, len(it.samples))
                    if samples > MAX_SAMPLES:
                        self.problems.add(f"{it.name}, and what follows: there are more than {MAX_SAMPLES:,} samples")
                        return
                    if _is_writable(it):
                        self.families.append(it)
                    else:
                        self.problems.add(f"{it.name!r} has a label, value or text that no page can have")
            except Exception as error:  # noqa: BLE001 - the handler's code may raise anything
                self.problems.add(f"a collector raises {type(error).__name__}")


class _OneFamily(CollectorRegistry):
    """A page of it alone."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _is_writable(family: Metric) -> bool:
    """Whether it can be on a page, in each format: one that cannot would cost the whole page."""
    try:
        for write in (exposition.generate_latest, openmetrics.generate_latest):
            write(_OneFamily(family))
    except Exception:  # noqa: BLE001 - labels and values of the handler's collectors may be anything
        return False
    return True


class _LazyProvider(api.MeterProvider):
    """Imports and sets up nothing before the first meter."""

    def __init__(self, sdk: Callable[[], MeterProvider]) -> None:
        self._sdk = sdk

    def get_meter(self, *args: Any, **options: Any) -> api.Meter:
        return self._sdk().get_meter(*args, **options)


def _names_of(family: Metric) -> set[str]:
    return {family.name, *(sample.name for sample in family.samples)}


def _pushed(family: Metric, now_ns: int) -> Iterator[PushedMetric]:
    """A family as OpenTelemetry has it. Of a summary only sum and count: the SDK has no summaries."""
    data: dict[str, Any] = {"description": family.documentation, "unit": family.unit}
    if family.type == "histogram":
        points = _histogram_points(family.samples, now_ns)
        yield PushedMetric(name=family.name, data=Histogram(points, AggregationTemporality.CUMULATIVE), **data)
        return
    by_name: dict[str, list[Sample]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            by_name.setdefault(sample.name, []).append(sample)
    for name, samples in by_name.items():
        numbers = [
            NumberDataPoint(
                attributes=dict(it.labels), start_time_unix_nano=0, time_unix_nano=now_ns, value=float(it.value)
            )
            for it in samples
        ]
        is_sum = name.endswith(("_total", "_count", "_sum")) and family.type in {"counter", "summary"}
        kind = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_sum else Gauge(numbers)
        yield PushedMetric(name=name.removesuffix("_total") if is_sum else name, data=kind, **data)


def _histogram_points(samples: Iterable[Sample], now_ns: int) -> list[HistogramDataPoint]:
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for it in samples:
        labels = {name: value for name, value in it.labels.items() if name != "le"}
        point = found.setdefault(tuple(sorted(labels.items())), {"le": [], "sum": 0.0})
        if it.name.endswith("_bucket"):
            point["le"].append((float(it.labels["le"]), it.value))
        elif it.name.endswith("_sum"):
            point["sum"] = it.value
    points = list[HistogramDataPoint]()
    for key, point in found.items():
        bounds = sorted(point["le"])
        below = [0.0, *(count for _, count in bounds)]
        counts = [int(count - before) for before, count in pairwise(below)]
        if min(counts, default=0) < 0:
            raise ValueError("buckets of a histogram are cumulative")
        points.append(
            HistogramDataPoint(
                attributes=dict(key),
                start_time_unix_nano=0,
                time_unix_nano=now_ns,
                count=sum(counts),
                sum=point["sum"],
                bucket_counts=counts,
                explicit_bounds=[bound for bound, _ in bounds[:-1]],
                min=float("-inf"),
                max=float("inf"),
            )
        )
    return points
