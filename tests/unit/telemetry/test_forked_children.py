"""Processes that a handler forks share the connection to the collector with their parent: they send nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slotmesh.config.otlp import OtlpTarget
from slotmesh.telemetry.exports import Exports
from slotmesh.telemetry.setup_readers import Bridge, PushingReader
from slotmesh.telemetry.setup_span_queue import BoundedSpans
from tests.support.spans import tracing_to

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class _Names(SpanExporter):
    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def in_child(run: Callable[[], int]) -> int:
    """What this returns in a forked child."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            os._exit(run())
        finally:
            os._exit(100)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_queues_no_span_and_does_not_wait_for_threads_of_its_parent() -> None:
    exporter = _Names()
    spans = BoundedSpans(exporter)
    tracing = tracing_to(spans)
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with spans._lock:  # as a thread that ends a span
            held.set()
            end.wait(30)

    def note() -> int:
        tracing.note("child", None, 1, 2)
        return spans.waiting

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(30)
    assert in_child(note) == 0
    end.set()
    thread.join(timeout=30)
    tracing.note("parent", None, 1, 2)
    spans.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK
    assert exporter.names == ["parent"]


def test_a_child_pushes_no_metrics() -> None:
    reader = PushingReader(OtlpTarget("http://127.0.0.1:1", insecure=True), Bridge((), 0), Exports("metrics"))

    def is_pushing() -> int:
        pusher = reader._daemon_thread
        assert pusher is not None
        pusher.join(5)
        return int(pusher.is_alive())

    assert in_child(is_pushing) == 0
    assert reader._daemon_thread is not None
    assert reader._daemon_thread.is_alive()
    reader.shutdown()
