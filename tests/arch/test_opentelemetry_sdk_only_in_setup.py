"""Code speaks the OpenTelemetry API; the SDK is chosen and configured in one place."""

from __future__ import annotations

from tests.arch.sources import imports, is_within, shipped_modules

SETUP = (
    "slotmesh/telemetry/setup.py",
    "slotmesh/telemetry/setup_handlers.py",
    "slotmesh/telemetry/setup_readers.py",
    "slotmesh/telemetry/setup_sdk.py",
    "slotmesh/telemetry/setup_span_queue.py",
    "slotmesh/telemetry/setup_tracing.py",
)
SDK = ("opentelemetry.sdk", "opentelemetry.exporter", "prometheus_client")


def test_the_sdk_is_imported_in_its_setup_only() -> None:
    found = [
        f"{path}:{line} {name}"
        for path, tree in shipped_modules()
        if not path.startswith(SETUP)
        for line, name in imports(tree)
        if any(is_within(name, package) for package in SDK)
    ]
    assert not found, f"the OpenTelemetry SDK belongs in {', '.join(SETUP)}"
