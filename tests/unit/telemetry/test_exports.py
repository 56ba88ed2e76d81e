"""Outages of a collector: one line each, and an end that does not wait for it."""

from __future__ import annotations

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


def fail(exports: Exports, dropped: int) -> None:
    with exports.running():
        EXPORTER.warning(
            "Transient error %s of %s, retrying: %s", grpc.StatusCode.UNAVAILABLE, "u:hush@host", "refused"
        )
        EXPORTER.error("Failed to export to %s: %s %s", "u:hush@host", grpc.StatusCode.UNAVAILABLE, "refused again")
    exports.ended(is_taken=False, dropped=dropped)


def test_an_outage_is_two_lines_with_the_counts(caplog: pytest.LogCaptureFixture) -> None:
    keep_attempts_quiet()
    caplog.set_level(logging.INFO)
    exports = Exports("traces")
    exports.drop(5)
    for count in (3, 4):
        fail(exports, count)
    assert exports.failing_since is not None
    with exports.running():
        pass
    exports.ended(is_taken=True)
    exports.ended(is_taken=True)
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


def test_lines_of_other_users_of_the_exporter_stay(caplog: pytest.LogCaptureFixture) -> None:
    keep_attempts_quiet()
    exports = Exports("metrics")
    with exports.running():
        other = threading.Thread(target=EXPORTER.error, args=("of a handler",))
        other.start()
        other.join()
    EXPORTER.error("of another")
    assert caplog.messages == ["of a handler", "of another"]


@pytest.mark.parametrize("state", ["failed before", "fails now", "hangs"])
def test_the_end_does_not_wait_for_a_collector_that_does_not_respond(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_IN_OUTAGE_S", 0.01)
    exports, may = Exports("metrics"), threading.Event()
    if state == "failed before":
        exports.ended(is_taken=False)
    monkeypatch.setattr(module, "LAST_S", 0.0 if state == "hangs" else 600.0)

    def end() -> None:
        with exports.running():
            if state == "fails now":
                exports.failed_attempt("refused")
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
