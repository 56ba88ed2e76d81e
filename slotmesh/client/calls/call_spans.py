"""The span of a call that is traced: the first one of its trace in the mesh.

Invariants: if the process has set up no tracer, or the enclosing span is not sampled, no span is made, and calls carry
the same trace as without one. The text of an error may come from a handler, and is in no span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from slotmesh.calls.trace_context import is_sampled
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.errors import SlotmeshError
from slotmesh.telemetry import names
from slotmesh.telemetry.tracing import call_name, context_of, failed_by

ResultT = TypeVar("ResultT")

_TRACER: Final = trace.get_tracer("slotmesh")


def spanned(spec: CallSpec, call: Callable[[], asyncio.Future[ResultT]]) -> asyncio.Future[ResultT]:
    """Makes a call, or a map of calls, in a span that ends with its future."""
    span = _started(spec)
    if span is None:
        return call()
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            future = call()
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise

    def ended(future: asyncio.Future[ResultT]) -> None:
        # Not `exception()`, which would mark the error as retrieved by the caller.
        error = asyncio.CancelledError() if future.cancelled() else getattr(future, "_exception", None)
        if error is not None:
            _fail(span, error)
        span.end()

    future.add_done_callback(ended)
    return future


@contextmanager
def in_span(spec: CallSpec) -> Iterator[None]:
    """The span of a call that is made, and awaited, in the block."""
    span = _started(spec)
    if span is None:
        yield
        return
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _fail(span, error)
        raise
    finally:
        span.end()


def _started(spec: CallSpec) -> Span | None:
    parent = spec.trace_of()
    if parent is not None and not is_sampled(parent):
        return None
    attributes = {names.ENDPOINT: spec.endpoint, names.METHOD: spec.method}
    name = f"call {call_name(spec.endpoint, spec.method)}"
    span = _TRACER.start_span(name, context_of(parent), SpanKind.CLIENT, attributes)
    return span if span.is_recording() else None


def _fail(span: Span, error: BaseException) -> None:
    if isinstance(error, SlotmeshError):
        failed_by(span, error.reason.value, error.executed, error.metadata)
    elif isinstance(error, asyncio.CancelledError):
        failed_by(span, "CANCELLED")
    else:
        failed_by(span, type(error).__name__)
