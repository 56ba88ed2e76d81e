"""Exports spans by OTLP over gRPC: users' spans encoded by the SDK, the mesh's own as encoded bytes.

Purpose: the SDK's exporter handles OpenTelemetry's variables, retries and reconnects; this subclass only avoids a
message object per field of a span. This is the only module that requires the extra `otlp`.
Invariants: the overridden method is not part of the SDK's public API. `pyproject.toml` limits the version to tested
ones, and a version without that method is refused at the start, as it would drop the mesh's spans.
Owner: `setup_tracing`; called in the thread of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from slotmesh.telemetry.setup_span_queue import Queued
from slotmesh.version import VERSION

OVERRIDDEN: Final = "_translate_data"
SCOPE: Final = InstrumentationScope("slotmesh", VERSION)


class UnknownExporter(Exception):
    """The installed exporter lacks the method that this module overrides."""


class MeshSpanExporter(OTLPSpanExporter):
    """The SDK's exporter, extended to the mesh's spans."""

    def __init__(self, resource: Resource, *, endpoint: str, insecure: bool, timeout: float) -> None:
        """`resource`: the resource of this process.

        Raises UnknownExporter.
        """
        if OVERRIDDEN not in vars(OTLPSpanExporter):
            raise UnknownExporter
        super().__init__(endpoint=endpoint, insecure=insecure, timeout=timeout)
        nothing = ReadableSpan("", SpanContext(1, 1, is_remote=False), resource=resource, instrumentation_scope=SCOPE)
        (of_resource,) = super()._translate_data([nothing]).resource_spans
        (of_scope,) = of_resource.scope_spans
        of_scope.ClearField("spans")
        self._scope = of_scope.SerializeToString()
        of_resource.ClearField("scope_spans")
        self._resource = of_resource.SerializeToString()

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        mine = [each.encoded for each in data if isinstance(each, Queued)]
        request = super()._translate_data([each for each in data if not isinstance(each, Queued)])
        if mine:
            spans = request.resource_spans.add()
            spans.MergeFromString(self._resource)
            scope = spans.scope_spans.add()
            scope.MergeFromString(self._scope + b"".join(mine))
        return request
