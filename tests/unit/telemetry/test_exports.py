"""Outages of a collector: one line each, and an end that does not wait for it."""

from __future__ import annotations

import importlib
import logging
import socket
import threading

import grpc
import pytest
from opentelemetry.metrics import Observation

from slotmesh.config.otlp import OtlpTarget
from slotmesh.telemetry import exports as module
from slotmesh.telemetry.exports import Exports, keep_attempts_quiet
from slotmesh.telemetry.setup_sdk import SdkMetrics

EXPORTER = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")


@pytest.fixture(autouse=True)
def exporter() -> None:
    """Its module, which has a filter of its own."""
    importlib.import_module("opentelemetry.exporter.otlp.proto.grpc.exporter")
    keep_attempts_quiet()


def fail(exports: Exports, dropped: int = 0, source: object = None) -> None:
    with exports.running(source, dropped=dropped):
        EXPORTER.warning(
            "Transient error %s of %s, retrying: %s", grpc.StatusCode.UNAVAILABLE, "u:hush@host", "refused"
        )
        EXPORTER.error("Failed to export to %s: %s %s", "u:hush@host", grpc.StatusCode.UNAVAILABLE, "refused again")


def take(exports: Exports, source: object = None) -> None:
    with exports.running(source) as run:
        run.is_taken = True


def test_an_outage_is_two_lines_with_the_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exports = Exports("traces")
    exports.drop(5)
    for count in (3, 4):
        fail(exports, count)
    assert exports.failing_since is not None
    take(exports)
    take(exports)
    assert exports.failing_since is None
    assert exports.dropped == 12
    down, up = caplog.messages
    assert "the collector does not take traces" in down
    assert "UNAVAILABLE: refused again" in down
    assert "the collector takes traces again" in up
    for figure in ("failed_exports=2", "spans_dropped=7"):
        assert figure in up
    assert "hush" not in caplog.text
    fail(exports, 1)
    assert len(caplog.messages) == 3, "another outage"


def test_each_signal_has_its_reason_though_the_exporter_leaves_out_repeated_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for signal in ("traces", "metrics"):
        with Exports(signal).running():
            EXPORTER.error("Failed: %s %s", grpc.StatusCode.UNIMPLEMENTED, "no such service")
    assert ["UNIMPLEMENTED: no such service" in each for each in caplog.messages] == [True, True]


def test_an_outage_of_one_source_beside_another_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """As metrics of handlers that are too many for one message, which the collector refuses, beside the replica's."""
    caplog.set_level(logging.INFO)
    exports = Exports("metrics")
    for _ in range(3):
        fail(exports, source="handlers")
        take(exports, source="replica")
        assert exports.is_in_outage
    fail(exports, source="replica")
    take(exports, source="handlers")
    assert len(caplog.messages) == 1
    take(exports, source="replica")
    assert not exports.is_in_outage
    [_, up] = caplog.messages
    assert "failed_exports=4" in up


def test_exports_of_two_sources_at_once_have_a_reason_each(caplog: pytest.LogCaptureFixture) -> None:
    exports = Exports("metrics")
    with exports.running("a") as first:
        first.failed("UNAVAILABLE: refused")
        other = threading.Thread(target=take, args=(exports, "b"))
        other.start()
        other.join()
        assert exports.is_in_outage
    [down] = caplog.messages
    assert "UNAVAILABLE: refused" in down


def test_an_export_that_raises_is_none(caplog: pytest.LogCaptureFixture) -> None:
    exports = Exports("traces")
    with pytest.raises(ZeroDivisionError), exports.running(dropped=3):
        raise ZeroDivisionError
    assert (exports.dropped, exports.is_in_outage, caplog.messages) == (0, False, [])


def test_lines_of_other_users_of_the_exporter_stay(caplog: pytest.LogCaptureFixture) -> None:
    exports = Exports("metrics")
    with exports.running() as run:
        EXPORTER.error("of a handler")
        other = threading.Thread(target=EXPORTER.error, args=("of a handler",))
        other.start()
        other.join()
        run.is_taken = True
    EXPORTER.error("of another")
    assert caplog.messages == ["of a handler", "of another"]


@pytest.mark.parametrize("state", ["failed before", "fails now", "hangs"])
def test_the_end_does_not_wait_for_a_collector_that_does_not_respond(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_IN_OUTAGE_S", 0.01)
    exports, may = Exports("metrics"), threading.Event()
    if state == "failed before":
        fail(exports)
    monkeypatch.setattr(module, "LAST_S", 0.0 if state == "hangs" else 600.0)

    def end() -> None:
        with exports.running() as run:
            if state == "fails now":
                run.failed("refused")
            may.wait(60)

    exports.finish(end)
    assert not may.is_set()
    may.set()


def test_the_end_waits_for_a_collector_that_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_IN_OUTAGE_S", 0.0)
    monkeypatch.setattr(module, "LAST_S", 600.0)
    exports, taken, waits = Exports("metrics"), [], threading.Event()

    def end() -> None:
        waits.wait(0.2)
        taken.append(1)

    exports.finish(end)
    assert taken


def test_metrics_that_are_refused_are_known_to_be_soon_after_the_start() -> None:
    """Not only at the end, or after the interval of a minute."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        sdk = SdkMetrics("service", otlp=OtlpTarget(url, insecure=True), instance="", has_page=False)
        sdk.meter.create_observable_counter("some", [lambda _: [Observation(1)]])
        exports = sdk.exports
        assert exports is not None
        try:
            deadline = threading.Event()
            for _ in range(600):
                if exports.is_in_outage or deadline.wait(0.1):
                    break
            assert exports.is_in_outage
        finally:
            for end in sdk.last_pushes():
                end()
            sdk.shutdown()
