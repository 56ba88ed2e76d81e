"""Traces of a process: the mesh's own spans, and those that users' code makes by the OpenTelemetry SDK.

Purpose: all other code makes spans through the `Tracing` it is given, or by OpenTelemetry's API.
Invariants: off without an endpoint, at no cost; both kinds of spans leave by one bounded queue; the end of the process
waits for the last ones for a bounded time.
Owner: the service's app.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from slotmesh.config import ServiceSettings
from slotmesh.config.otlp import otlp_target, tracing_ratio
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.mesh_span import MAX_ATTRIBUTE_CHARS
from slotmesh.telemetry.names import SERVICE_NAME
from slotmesh.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from slotmesh.telemetry.setup_span_queue import BoundedSpans

EXPORT_TIMEOUT_S: Final = 10.0
LAST_SPANS_S: Final = 2.0
"""How long the end of the process may wait for the collector."""
MISSING: Final = "opentelemetry-exporter-otlp-proto-grpc is not installed: pip install 'slotmesh[otlp]'"
UNKNOWN: Final = (
    "opentelemetry-exporter-otlp-proto-grpc is of a version that slotmesh does not know: pip install 'slotmesh[otlp]'"
)

_log = get_logger(__name__)


class TracingSetup:
    """Traces of one service, or none."""

    def __init__(
        self,
        provider: TracerProvider | None = None,
        spans: BoundedSpans | None = None,
        ratio: float = 0.0,
        rate: float = 0.0,
    ) -> None:
        self._provider = provider
        self._spans = spans
        self.tracing: Tracing | None = None
        """None where traces are off."""
        if spans is not None:
            self.tracing = Tracing(spans.take, ratio, rate, random.random)

    @property
    def dropped(self) -> int:
        """Spans that did not leave: too many waited, some could not be encoded, or the collector did not take them."""
        return self._spans.dropped if self._spans is not None else 0

    def use_for_handlers(self) -> None:
        """Spans that users' code makes in this process go the same way, unless it has chosen another one before."""
        if self._provider is not None:
            trace.set_tracer_provider(self._provider)

    async def aclose(self) -> None:
        """As `shutdown`, without holding up the event loop."""
        if self._provider is not None:
            await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """Sends the last spans, within `LAST_SPANS_S`. May be called again."""
        provider, self._provider = self._provider, None
        if provider is None:
            return
        # The SDK waits for half a minute, and an export that is under way for ten seconds: not longer than is useful.
        last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_SPANS_S)
        if self._spans is not None and (left_out := self._spans.dropped + self._spans.waiting):
            _log.warning("spans were not sent", spans=left_out)


def setup_tracing(
    service_name: str, settings: ServiceSettings, attributes: Mapping[str, str], *, samples_roots: bool = False
) -> TracingSetup:
    """Starts to send traces where the settings, or OpenTelemetry's variables, name an OTLP endpoint.

    `attributes` are those of the process. `samples_roots`: whether spans without a parent that users' code makes are
    drawn; who makes one of the mesh's has drawn it.

    Raises:
        CannotStart: the exporter is not installed, or a variable of OpenTelemetry is not sound.
    """
    try:
        target = otlp_target(settings.otlp_endpoint, os.environ, "traces")
        ratio = tracing_ratio(settings.tracing_ratio, os.environ)
    except ValueError as error:
        raise CannotStart(f"{service_name}: {error}") from None
    if target is None or ratio is None:
        return TracingSetup()
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - the SDK is for who sends traces
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415 - likewise
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased  # noqa: PLC0415 - likewise

    from slotmesh.telemetry.setup_span_queue import BoundedSpans  # noqa: PLC0415 - likewise

    try:
        from slotmesh.telemetry.setup_span_exporter import MeshSpanExporter, UnknownExporter  # noqa: PLC0415 - it needs an extra
    except ImportError:
        raise CannotStart(f"{service_name} cannot send traces to {target.url}: {MISSING}") from None
    resource = Resource.create({SERVICE_NAME: service_name, **attributes})
    try:
        exporter = MeshSpanExporter(resource, endpoint=target.url, insecure=target.insecure, timeout=EXPORT_TIMEOUT_S)
    except UnknownExporter:
        raise CannotStart(f"{service_name} cannot send traces to {target.url}: {UNKNOWN}") from None
    spans = BoundedSpans(exporter)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio) if samples_roots else ALWAYS_ON),
        resource=resource,
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_attribute_length=MAX_ATTRIBUTE_CHARS),
    )
    provider.add_span_processor(spans)
    _log.info("sending traces", endpoint=target.url, ratio=ratio)
    return TracingSetup(provider, spans, ratio, settings.tracing_rate)
