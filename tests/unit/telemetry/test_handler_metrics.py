"""Metrics of a handler on the replica's page: beside slotmesh's own, which do not depend on them."""

from __future__ import annotations

import math
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    MetricsData,
    ResourceMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client import REGISTRY, Counter, Metric, Summary
from prometheus_client import Gauge as PromGauge
from prometheus_client import Histogram as PromHistogram
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from slotmesh.telemetry import names, setup_handlers
from slotmesh.telemetry.instruments import observe_counter, observe_gauge
from slotmesh.telemetry.setup import MetricsServer, setup_metrics
from slotmesh.telemetry.setup_handlers import HandlerMetrics


class Custom:
    """A collector of a handler."""

    def __init__(self, *found: Metric, fails: bool = False) -> None:
        self.found = found
        self.fails = fails
        self.hangs = threading.Event()
        self.hangs.set()

    def describe(self) -> list[Metric]:
        """None: the registry cannot know what it clashes with."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self.found
        self.hangs.wait()
        if self.fails:
            raise ValueError("hunter-2")


def family(name: str, count: int = 1) -> Metric:
    made = Metric(name, "of the handler", "gauge")
    for number in range(count):
        made.add_sample(name, {"n": str(number)}, number)
    return made


@pytest.fixture
def registered() -> Iterator[Any]:
    """Registers collectors until the test ends."""
    found: list[Any] = []

    def register(collector: Any) -> Any:
        if collector not in REGISTRY._collector_to_names:
            REGISTRY.register(collector)
        found.append(collector)
        return collector

    yield register
    for it in found:
        REGISTRY.unregister(it)


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(HandlerMetrics, "use", lambda _: None)  # the provider of a process can be set once
    server = setup_metrics("slotmesh-test", port=0)
    observe_gauge(server.meter, names.CONTROLLER_REVISION, lambda: {(): 7})
    observe_counter(server.meter, names.REPLICA_CALLS, lambda: {("v1",): 3})
    server.use_for_handlers()
    yield server
    server.shutdown()


def page(metrics: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    assert "slotmesh_controller_revision 7" in text, "slotmesh's own"
    families = [it.name for it in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))
    return text


def test_a_process_whose_handler_has_none_shows_slotmeshs_alone(metrics: MetricsServer) -> None:
    assert "python_" not in page(metrics)


def test_the_default_registry_is_on_the_page(metrics: MetricsServer, registered: Any) -> None:
    registered(Counter("shop_orders", "Orders.", ["kind"])).labels("gift").inc(2)
    registered(PromHistogram("shop_sizes", "Sizes.", buckets=(1, 2))).observe(1.5)
    text = page(metrics)
    assert 'shop_orders_total{kind="gift"} 2.0' in text
    assert 'shop_sizes_bucket{le="2.0"} 1.0' in text
    assert "python_info" in text
    assert text.count("# TYPE process_cpu_seconds_total") == 1


@pytest.mark.parametrize("name", ["process_orders", "python_model_runs"])
def test_a_handlers_only_metric_may_begin_as_those_of_each_process_do(
    metrics: MetricsServer, registered: Any, name: str
) -> None:
    registered(Counter(name, "Runs.")).inc()
    assert f"{name}_total 1.0" in page(metrics)


def test_slotmeshs_names_win_and_each_clash_is_logged_once(
    metrics: MetricsServer, registered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registered(Custom(family("slotmesh_controller_revision", 3), family("slotmesh_new"), family("shop_good")))
    registered(Custom(family("shop_good", 2), family("target_info")))
    for _ in range(2):
        text = page(metrics)
        assert "slotmesh_new" not in text
        assert 'slotmesh_controller_revision{n="1"}' not in text
        assert 'shop_good{n="0"} 0.0' in text
        assert 'shop_good{n="1"}' not in text
        assert text.count("# TYPE target_info") == 1
    logged = [it.what for it in caplog.records if hasattr(it, "what")] or caplog.text
    for name in ("slotmesh_controller_revision", "slotmesh_new", "shop_good", "target_info"):
        assert str(logged).count(name) == 1, logged


def test_a_collector_that_fails_costs_its_own_metrics_and_its_text_is_not_logged(
    metrics: MetricsServer, registered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registered(Custom(family("shop_before"), fails=True))
    for _ in range(2):
        assert "shop_before" in page(metrics)
    assert caplog.text.count("ValueError") == 1
    assert "hunter-2" not in caplog.text


def test_a_collector_that_hangs_is_left_alone_until_it_has_ended(
    metrics: MetricsServer, registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_handlers, "COLLECT_S", 0.05)
    hanging = registered(Custom(family("shop_late")))
    hanging.hangs.clear()
    before = threading.active_count()
    for _ in range(3):
        assert "shop_late" not in page(metrics)
    readers = [it for it in threading.enumerate() if it.name == "metrics of the handler"]
    assert len(readers) == 1, before
    hanging.hangs.set()
    readers[0].join(10)
    monkeypatch.setattr(setup_handlers, "COLLECT_S", 10.0)
    assert "shop_late" in page(metrics)


def test_the_samples_of_a_handler_are_bounded(
    metrics: MetricsServer, registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_handlers, "MAX_SAMPLES", 1000)
    registered(Custom(family("shop_few", 900), family("shop_many", 1001), family("shop_after")))
    text = page(metrics)
    assert "shop_few" in text
    assert "shop_many" not in text
    assert "shop_after" not in text


def pushed(handlers: HandlerMetrics) -> dict[str, Any]:
    empty = ResourceMetrics(resource=Resource({}), scope_metrics=[], schema_url="")
    (found,) = handlers.added_to(MetricsData(resource_metrics=[empty])).resource_metrics
    return {it.name: it.data for scope in found.scope_metrics for it in scope.metrics}


def test_the_default_registry_is_pushed_as_well(registered: Any) -> None:
    handlers = HandlerMetrics(Resource({}), None)
    assert pushed(handlers) == {}
    registered(Counter("shop_orders", "Orders.", ["kind"])).labels("gift").inc(2)
    registered(PromGauge("shop_stock", "Stock.")).set(4)
    registered(Summary("shop_waits", "Waits.")).observe(3)
    histogram = registered(PromHistogram("shop_sizes", "Sizes.", buckets=(1, 2)))
    for value in (0.5, 1.5, 1.6, 9):
        histogram.observe(value)
    registered(Custom(family("slotmesh_mine")))
    found = pushed(handlers)
    assert "slotmesh_mine" not in found
    assert isinstance(found["shop_orders"], Sum)
    (orders,) = found["shop_orders"].data_points
    assert (orders.value, dict(orders.attributes or {})) == (2.0, {"kind": "gift"})
    assert isinstance(found["shop_stock"], Gauge)
    assert found["shop_stock"].data_points[0].value == 4
    assert (found["shop_waits_sum"].data_points[0].value, found["shop_waits_count"].data_points[0].value) == (3, 1)
    assert isinstance(found["shop_sizes"], Histogram)
    (sizes,) = found["shop_sizes"].data_points
    assert (list(sizes.bucket_counts), list(sizes.explicit_bounds)) == ([1, 2, 1], [1.0, 2.0])
    assert (sizes.count, sizes.sum) == (4, 12.6)


@pytest.mark.parametrize(
    "sample",
    [
        ({"n": "\udc80"}, 1.0),
        ({"n": 7}, 1.0),
        ({}, "many"),
        ({}, 1.0, math.nan),
        ({}, 1.0, None, Exemplar({}, 1.0)),
    ],
    ids=[
        "a label that is no text",
        "a label that is a number",
        "a value that is none",
        "a time that the plain format cannot have",
        "an exemplar that OpenMetrics cannot have",
    ],
)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_a_family_that_cannot_be_written_costs_itself_alone(
    metrics: MetricsServer, registered: Any, sample: Any, accept: str
) -> None:
    bad = Metric("handler_bad", "of the handler", "gauge")
    bad.add_sample("handler_bad", *sample)
    registered(Custom(bad, family("handler_good")))
    request = urllib.request.Request(f"http://{metrics.address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own page
        text = answer.read().decode()
    assert "slotmesh_controller_revision 7" in text
    assert "handler_good" in text
    assert "handler_bad" not in text


def test_families_without_samples_are_bounded_as_well(metrics: MetricsServer, registered: Any) -> None:
    class Endless(Custom):
        def collect(self) -> Iterator[Metric]:
            for number in range(setup_handlers.MAX_SAMPLES + 100):
                self.last = number
                yield Metric(f"empty_{number}", "of the handler", "gauge")

    endless = registered(Endless())
    page(metrics)
    assert endless.last < setup_handlers.MAX_SAMPLES + 1


def test_what_cannot_be_pushed_costs_itself_alone(registered: Any) -> None:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    large = Metric("large", "of the handler", "gauge")
    large.add_sample("large", {}, 2**70)
    falling = Metric("falling", "of the handler", "histogram")
    for le, count in (("1", 5), ("+Inf", 3)):
        falling.add_sample("falling_bucket", {"le": le}, count)
    odd = Metric("odd", "of the handler", "histogram")
    odd.add_sample("odd_bucket", {}, 3)
    endless = Metric("endless", "of the handler", "histogram")
    endless.add_sample("endless_bucket", {"le": "+Inf"}, math.inf)
    registered(Custom(large, falling, odd, endless, family("good")))
    handlers = HandlerMetrics(Resource({}), None)
    own = MetricsData([ResourceMetrics(Resource({}), [], "")])
    added = handlers.added_to(own)
    encode_metrics(added)
    names = {it.name for scope in added.resource_metrics[0].scope_metrics for it in scope.metrics}
    assert {"good", "large"} <= names
    assert not {"falling", "odd", "endless"} & names
