"""Tracing of a process: the mesh's own spans, and those of users' code, both made by the OpenTelemetry SDK.

Purpose: all other code makes spans through a `Tracing` that is passed to it, or by OpenTelemetry's API.
Invariants: without an endpoint tracing is off and costs nothing; spans of the mesh and of users' code have separate
providers, as the mesh samples its calls itself, and are exported by one bounded queue; the end of the process waits for
the last spans for a bounded time.
Owner: the service's app.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from slotmesh.config import ServiceSettings
from slotmesh.config.otlp import otlp_target, tracing_ratio
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.exports import Exports
from slotmesh.telemetry.names import SERVICE_NAME
from slotmesh.telemetry.tracing import MAX_LINKS, MAX_TEXT_CHARS, Tracing
from slotmesh.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from slotmesh.telemetry.setup_span_queue import BoundedSpans

EXPORT_TIMEOUT_S: Final = 10.0
MISSING: Final = "opentelemetry-exporter-otlp-proto-grpc is not installed: pip install 'slotmesh[otlp]'"

_log = get_logger(__name__)


class TracingSetup:
    """The tracing of one service, possibly off."""

    def __init__(
        self,
        tracing: Tracing | None = None,
        provider: TracerProvider | None = None,
        spans: BoundedSpans | None = None,
    ) -> None:
        """`provider`: of the spans of users' code. `spans`: the queue of both kinds of spans."""
        self.tracing = tracing
        """None if tracing is off."""
        self._provider = provider
        self._spans = spans

    @property
    def dropped(self) -> int:
        """Spans that were not exported: the queue was full, encoding failed, or the collector did not accept them."""
        return self._spans.dropped if self._spans is not None else 0

    @property
    def exports(self) -> Exports | None:
        """How exports go; None if tracing is off."""
        return None if self._spans is None else self._spans.exports

    def use_for_handlers(self) -> None:
        """Exports spans of users' code in this process the same way, unless it has set its own provider."""
        if self._provider is not None:
            trace.set_tracer_provider(self._provider)

    async def aclose(self) -> None:
        """As `shutdown`, without blocking the event loop."""
        if self._provider is not None:
            await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """Exports the last spans, within `exports.LAST_S`. May be called again."""
        provider, self._provider = self._provider, None
        if provider is None or self._spans is None:
            return
        self._spans.exports.finish(provider.shutdown)
        if left_out := self._spans.dropped + self._spans.waiting:
            _log.warning("spans were not sent", spans=left_out)


def setup_tracing(
    service_name: str, settings: ServiceSettings, attributes: Mapping[str, str], *, samples_roots: bool = False
) -> TracingSetup:
    """Starts tracing if the settings, or OpenTelemetry's variables, name an OTLP endpoint.

    `attributes`: of the process. `samples_roots`: whether the SDK samples root spans of users' code; the mesh samples
    its own when it makes them.

    Raises:
        CannotStart: the exporter is not installed, or a variable of OpenTelemetry is invalid.
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
    from opentelemetry.sdk.trace.sampling import (  # noqa: PLC0415 - likewise
        ALWAYS_ON,
        ParentBased,
        Sampler,
        TraceIdRatioBased,
    )

    from slotmesh.telemetry.setup_span_queue import BoundedSpans  # noqa: PLC0415 - likewise

    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    except ImportError:
        raise CannotStart(f"{service_name} cannot send traces to {target.url}: {MISSING}") from None
    spans = BoundedSpans(OTLPSpanExporter(endpoint=target.url, insecure=target.insecure, timeout=EXPORT_TIMEOUT_S))
    resource = Resource.create({SERVICE_NAME: service_name, **attributes})

    def provider_of(sampler: Sampler) -> TracerProvider:
        limits = SpanLimits(max_attribute_length=MAX_TEXT_CHARS, max_links=MAX_LINKS)
        provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=limits)
        provider.add_span_processor(spans)
        return provider

    tracer = provider_of(ALWAYS_ON).get_tracer("slotmesh", VERSION)
    users = provider_of(ParentBased(TraceIdRatioBased(ratio) if samples_roots else ALWAYS_ON))
    _log.info("sending traces", endpoint=target.url, ratio=ratio)
    return TracingSetup(Tracing(tracer, ratio, settings.tracing_rate, random.random), users, spans)
