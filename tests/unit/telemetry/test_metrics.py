"""A scrape reads what the cores count, on their own event loop."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client.parser import text_string_to_metric_families

from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.names import Metric
from slotmesh.telemetry.setup import MetricsServer, setup_metrics
from slotmesh.telemetry.setup_span_queue import BoundedSpans


@pytest.fixture
def metrics() -> Iterator[MetricsServer]:
    server = setup_metrics("slotmesh-test", port=0)
    yield server
    server.shutdown()


def fetch(metrics: MetricsServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_gauges_are_read_when_asked(metrics: MetricsServer) -> None:
    failures = {("digits", "v1", "QUEUE_FULL"): 3}
    observe_counter(metrics.meter, names.ROUTER_FAILURES, lambda: failures)
    observe_gauge(metrics.meter, names.CONTROLLER_REVISION, lambda: {(): 7})
    labels = (("slotmesh_backend", "v1"), ("slotmesh_endpoint", "digits"), ("slotmesh_reason", "QUEUE_FULL"))
    read = fetch(metrics)
    assert read["slotmesh_router_failures_total", labels] == 3
    assert read["slotmesh_controller_revision", ()] == 7
    assert read["target_info", (("service_name", "slotmesh-test"),)] == 1
    failures["digits", "v1", "QUEUE_FULL"] = 5
    assert fetch(metrics)["slotmesh_router_failures_total", labels] == 5


def test_spans_that_were_dropped_are_counted(metrics: MetricsServer) -> None:
    spans = BoundedSpans(_Refusing())
    metrics.observe_spans(lambda: spans.dropped)
    assert fetch(metrics)["slotmesh_process_spans_dropped_total", ()] == 0
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    for _ in range(3):
        provider.get_tracer("test").start_span("refused").end()
    provider.force_flush()
    assert fetch(metrics)["slotmesh_process_spans_dropped_total", ()] == 3
    provider.shutdown()


class _Refusing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_instruments_of_before_and_after_the_first_scrape_are_exported(metrics: MetricsServer) -> None:
    observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 1})
    metrics.observe_histogram(names.ROUTER_QUEUE_TIME, lambda: {("v1",): Buckets((0.1,), (1, 0), 0.1)})
    first = fetch(metrics)
    observe_counter(metrics.meter, names.PROCESS_SPANS_DROPPED, lambda: {(): 2})
    metrics.observe_histogram(
        names.ROUTER_CALL_TIME, lambda: {("x",) * len(names.ROUTER_CALL_TIME.attributes): Buckets((0.1,), (1, 0), 0.1)}
    )
    second = fetch(metrics)
    assert first["slotmesh_router_streams", ()] == second["slotmesh_router_streams", ()] == 1
    assert second["slotmesh_process_spans_dropped_total", ()] == 2
    named = [{name for name, _ in read if name.endswith("_time_seconds_count")} for read in (first, second)]
    assert named == [
        {"slotmesh_router_queue_time_seconds_count"},
        {"slotmesh_router_queue_time_seconds_count", "slotmesh_router_call_time_seconds_count"},
    ]


def test_many_first_scrapes_set_the_sdk_up_once(metrics: MetricsServer) -> None:
    observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 1})
    with ThreadPoolExecutor(8) as threads:
        pages = list(threads.map(lambda _: fetch(metrics), range(8)))
    assert [page["slotmesh_router_streams", ()] for page in pages] == [1] * 8


def test_histograms_that_somebody_keeps_are_read_when_asked(metrics: MetricsServer) -> None:
    observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 0})
    counts = [4, 0, 1]
    metrics.observe_histogram(names.ROUTER_QUEUE_TIME, lambda: {("v1",): Buckets((0.1, 1.0), counts, 7.5)})
    name, label = "slotmesh_router_queue_time_seconds", ("slotmesh_backend", "v1")

    def read() -> list[float]:
        values = fetch(metrics)
        bounds = [values[f"{name}_bucket", (("le", bound), label)] for bound in ("0.1", "1.0", "+Inf")]
        return [*bounds, values[f"{name}_count", (label,)], values[f"{name}_sum", (label,)]]

    assert read() == [4, 4, 5, 5, 7.5]
    counts[1] = 2
    assert read() == [4, 6, 7, 7, 7.5]


def test_without_a_port_nobody_reads_histograms() -> None:
    setup_metrics("slotmesh-test").observe_histogram(names.ROUTER_QUEUE_TIME, lambda: pytest.fail("was read"))


@pytest.mark.asyncio
async def test_state_is_read_by_the_loop_that_owns_it(metrics: MetricsServer) -> None:
    readers: set[int] = set()

    def read() -> dict[tuple[str, ...], int]:
        readers.add(threading.get_ident())
        return {("v1",): 1}

    observe_gauge(metrics.meter, names.ROUTER_QUEUED, read)
    values = await asyncio.to_thread(fetch, metrics)
    assert values["slotmesh_router_queued", (("slotmesh_backend", "v1"),)] == 1
    assert readers == {threading.get_ident()}


def test_a_loop_that_has_ended_yields_nothing(metrics: MetricsServer) -> None:
    async def register() -> None:
        observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 1})

    asyncio.run(register())
    assert not [name for name, _ in fetch(metrics) if name.startswith("slotmesh")]


@pytest.mark.asyncio
async def test_a_loop_that_is_blocked_does_not_hang_the_scrape(
    metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.telemetry.instruments.SCRAPE_TIMEOUT_S", 0.01)
    observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 1})
    assert not [name for name, _ in fetch(metrics) if name.startswith("slotmesh")]  # blocks the loop meanwhile
    assert [name for name, _ in await asyncio.to_thread(fetch, metrics) if name.startswith("slotmesh")]


def test_two_servers_in_one_process_do_not_mix(metrics: MetricsServer) -> None:
    other = setup_metrics("other", port=0)
    try:
        observe_gauge(metrics.meter, names.ROUTER_STREAMS, lambda: {(): 1})
        observe_gauge(other.meter, names.ROUTER_STREAMS, lambda: {(): 2})
        assert fetch(metrics)["slotmesh_router_streams", ()] == 1
        assert fetch(other)["slotmesh_router_streams", ()] == 2
    finally:
        other.shutdown()


def test_a_taken_port_is_refused_with_a_way_out(metrics: MetricsServer) -> None:
    assert metrics.address is not None
    with pytest.raises(CannotStart, match=r"cannot serve metrics on .*in use.*--metrics-port"):
        setup_metrics("second", port=int(metrics.address.rpartition(":")[2]))


def test_shutdown_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    threads = set(threading.enumerate())
    metrics = setup_metrics("short", port=0)
    fetch(metrics)
    metrics.shutdown()
    metrics.shutdown()
    assert metrics.address is None
    assert set(threading.enumerate()) <= threads
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("port", [None, -1])
def test_off_means_off(port: int | None) -> None:
    metrics = setup_metrics("off", port=port)
    assert metrics.address is None
    observe_counter(metrics.meter, names.ROUTER_CALLS, dict)
    metrics.shutdown()


def test_names_are_used_once_and_follow_the_conventions() -> None:
    metrics = [each for each in vars(names).values() if isinstance(each, Metric)]
    assert len({each.name for each in metrics}) == len(metrics)
    for each in metrics:
        assert each.name.startswith(("slotmesh.", "rpc.server.")), "ours, or one of the semantic conventions"
        assert each.name == each.name.lower()
        assert each.unit
        assert each.description.endswith(".")
        assert all(attribute.startswith(("slotmesh.", "rpc.", "http.")) for attribute in each.attributes)
